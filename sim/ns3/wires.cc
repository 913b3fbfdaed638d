#include "wires.h"

#include <ns3/applications-module.h>
#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>
#include <ns3/traffic-control-module.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

namespace netsum::sim::ns3_wires {
namespace {

using namespace ns3;

constexpr std::uint16_t frames_port = 7170, first_tcp_port = 5000;
constexpr std::uint64_t unlimited = 1'000'000'000'000'000;  // bits a second
// A frame of ours counts Ethernet, IPv4 and UDP (sim::datagram_header_bytes). ns-3's wire has PPP, 12 bytes shorter than
// Ethernet's header: datagrams are as much longer.
constexpr std::uint32_t headers = 2 + 20 + 8;
constexpr std::uint16_t mtu = 65000;

// Which frame a packet is.
class FrameTag : public Tag {
 public:
  explicit FrameTag(std::uint32_t frame = 0) : frame_(frame) {}
  static TypeId GetTypeId() {
    static TypeId id = TypeId("netsum::FrameTag").SetParent<Tag>().AddConstructor<FrameTag>();
    return id;
  }
  TypeId GetInstanceTypeId() const override { return GetTypeId(); }
  std::uint32_t GetSerializedSize() const override { return 4; }
  void Serialize(TagBuffer buffer) const override { buffer.WriteU32(frame_); }
  void Deserialize(TagBuffer buffer) override { frame_ = buffer.ReadU32(); }
  void Print(std::ostream& stream) const override { stream << frame_; }
  [[nodiscard]] std::uint32_t frame() const { return frame_; }

 private:
  std::uint32_t frame_;
};

// First in, first out, with a buffer and a threshold behind which packets are marked: what sim/fabric.h has.
class PortQueue : public QueueDisc {
 public:
  static TypeId GetTypeId() {
    static TypeId id = TypeId("netsum::PortQueue").SetParent<QueueDisc>().AddConstructor<PortQueue>();
    return id;
  }
  PortQueue() : QueueDisc(QueueDiscSizePolicy::SINGLE_INTERNAL_QUEUE, QueueSizeUnit::BYTES) {}

  Counts* counts = nullptr;
  std::uint64_t buffer = UINT64_MAX, mark = UINT64_MAX;
  std::function<std::uint64_t()> ahead;  // bytes that have left the queue, and not the port
  std::function<void(Ptr<const Packet>)> gone;

  [[nodiscard]] std::uint64_t waiting() const { return GetNBytes() + ahead(); }

 private:
  bool DoEnqueue(Ptr<QueueDiscItem> item) override {
    const std::uint64_t queued = waiting();
    if (queued + item->GetSize() > buffer) {
      ++counts->dropped;
      gone(item->GetPacket());
      DropBeforeEnqueue(item, "full");
      return false;
    }
    if (queued > mark && Mark(item, "threshold")) ++counts->marked;
    counts->longest_queue = std::max<std::uint64_t>(counts->longest_queue, queued + item->GetSize());
    return GetInternalQueue(0)->Enqueue(item);
  }
  Ptr<QueueDiscItem> DoDequeue() override { return GetInternalQueue(0)->Dequeue(); }
  bool CheckConfig() override {
    if (GetNInternalQueues() == 0) {
      const auto queue = CreateObject<DropTailQueue<QueueDiscItem>>();
      queue->SetMaxSize(QueueSize(QueueSizeUnit::BYTES, UINT32_MAX));
      AddInternalQueue(queue);
    }
    return true;
  }
  void InitializeParams() override {}
};

// With the region in which RFC 9438 is as fast as Reno (section 4.3), which ns-3 has from 3.41 on.
class FriendlyCubic : public TcpCubic {
 public:
  static TypeId GetTypeId() {
    static TypeId id = TypeId("netsum::FriendlyCubic").SetParent<TcpCubic>().AddConstructor<FriendlyCubic>();
    return id;
  }
  TypeId GetInstanceTypeId() const override { return GetTypeId(); }
  Ptr<TcpCongestionOps> Fork() override { return CopyObject<FriendlyCubic>(this); }

  void IncreaseWindow(Ptr<TcpSocketState> state, std::uint32_t acknowledged) override {
    const bool avoids = state->m_cWnd >= state->m_ssThresh;
    TcpCubic::IncreaseWindow(state, acknowledged);
    if (!avoids) return;
    const double segment = state->m_segmentSize, window = state->m_cWnd / segment;
    if (estimate_ == 0) estimate_ = window;
    estimate_ += (estimate_ < prior_ ? alpha : 1) * acknowledged / window;
    if (estimate_ > window) state->m_cWnd = static_cast<std::uint32_t>(estimate_ * segment);
  }
  std::uint32_t GetSsThresh(Ptr<const TcpSocketState> state, std::uint32_t in_flight) override {
    prior_ = state->GetCwndInSegments();
    estimate_ = 0;
    return TcpCubic::GetSsThresh(state, in_flight);
  }

 private:
  static constexpr double alpha = 3 * (1 - 0.7) / (1 + 0.7);
  double prior_ = 0, estimate_ = 0;  // segments; W_est
};

}  // namespace

struct Wires::State {
  struct Device {
    Ptr<PointToPointNetDevice> device;
    Ptr<PortQueue> queue;
    Ptr<RedQueueDisc> red;  // in its place
    Counts counts;
    DataRate rate;
    Time free;  // when the packet that it sends has left

    [[nodiscard]] std::uint64_t waiting() const { return red ? red->GetNBytes() + ahead() : queue->waiting(); }

    [[nodiscard]] std::uint64_t ahead() const {
      const double sending =
          std::max(0.0, (free - Simulator::Now()).GetSeconds()) * static_cast<double>(rate.GetBitRate()) / 8;
      return device->GetQueue()->GetNBytes() + static_cast<std::uint64_t>(sending);
    }
  };

  NodeContainer nodes;
  std::vector<std::uint32_t> above;
  std::vector<Ipv4Address> addresses;  // of nodes
  std::vector<Ptr<Socket>> sockets;
  std::vector<Device> up, down;  // of the link to the node above
  std::vector<Ptr<PacketSink>> tcp;
  std::uint64_t hops = 0;
  User* user = nullptr;
  bool ended = false;

  // ---- setting up

  State(const std::vector<Node>& plan, std::uint64_t seed) : addresses(plan.size()), up(plan.size()), down(plan.size()) {
    RngSeedManager::SetSeed(static_cast<std::uint32_t>(1 + seed % 4'000'000'000));
    nodes.Create(static_cast<std::uint32_t>(plan.size()));
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.SetRoutingHelper(Ipv4StaticRoutingHelper());
    stack.Install(nodes);
    for (const Node& node : plan) above.push_back(node.above);
    Ipv4AddressHelper network("10.0.0.0", "255.255.255.252");
    std::vector<Ipv4Address> gateways(plan.size());
    for (std::uint32_t node = 0; node < plan.size(); ++node) {
      if (above[node] == UINT32_MAX) continue;
      link(node, plan[node]);
      NetDeviceContainer both;
      both.Add(up[node].device);
      both.Add(down[node].device);
      const Ipv4InterfaceContainer interfaces = network.Assign(both);
      network.NewNetwork();
      addresses[node] = interfaces.GetAddress(0);
      gateways[node] = interfaces.GetAddress(1);
      if (above[above[node]] == UINT32_MAX && addresses[above[node]] == Ipv4Address())
        addresses[above[node]] = gateways[node];
    }
    route(gateways);
    for (std::uint32_t node = 0; node < plan.size(); ++node) sockets.push_back(listen(node));
  }

  void link(std::uint32_t node, const Node& plan) {
    if (plan.up.delay_ns != plan.down.delay_ns)
      throw std::invalid_argument("a link of ns-3 has the same delay in both directions");
    PointToPointHelper helper;
    helper.SetDeviceAttribute("Mtu", UintegerValue(mtu));
    helper.SetChannelAttribute("Delay", TimeValue(NanoSeconds(plan.up.delay_ns)));
    helper.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));  // packets wait in the discipline
    const NetDeviceContainer devices = helper.Install(nodes.Get(node), nodes.Get(above[node]));
    for (const bool is_up : {true, false}) {
      Device& own = is_up ? up[node] : down[node];
      const Port& port = is_up ? plan.up : plan.down;
      own.device = DynamicCast<PointToPointNetDevice>(devices.Get(is_up ? 0 : 1));
      own.rate = DataRate(port.bits_per_second == 0 ? unlimited : port.bits_per_second);
      own.device->SetDataRate(own.rate);
      const auto control = own.device->GetNode()->GetObject<TrafficControlLayer>();
      if (port.red_most_bytes != 0) {
        own.red = red_queue(own, port);
        control->SetRootQueueDiscOnDevice(own.device, own.red);
      } else {
        control->SetRootQueueDiscOnDevice(own.device, port_queue(own, port));
      }
      own.device->TraceConnectWithoutContext("PhyTxBegin", MakeBoundCallback(&State::transmits, this, &own));
      if (port.loss > 0) {
        const auto errors = CreateObject<RateErrorModel>();
        errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
        errors->SetRate(port.loss);
        const auto receiver = DynamicCast<PointToPointNetDevice>(devices.Get(is_up ? 1 : 0));
        receiver->SetReceiveErrorModel(errors);
        receiver->TraceConnectWithoutContext("PhyRxDrop", MakeBoundCallback(&State::corrupted, this, &own.counts));
      }
    }
  }

  Ptr<PortQueue> port_queue(Device& own, const Port& port) {
    own.queue = CreateObject<PortQueue>();
    own.queue->counts = &own.counts;
    own.queue->buffer = port.buffer_bytes;
    own.queue->mark = port.mark_bytes;
    own.queue->ahead = [&own] { return own.ahead(); };
    own.queue->gone = [this](const Ptr<const Packet>& packet) { lost(packet); };
    return own.queue;
  }

  // ns-3's own, by the rules of sim/red.h.
  Ptr<RedQueueDisc> red_queue(Device& own, const Port& port) {
    constexpr std::uint32_t packet_bytes = 1500;  // of TCP: chances are of these
    const auto red = CreateObject<RedQueueDisc>();
    const auto buffer = static_cast<std::uint32_t>(std::min<std::uint64_t>(port.buffer_bytes, UINT32_MAX));
    red->SetMaxSize(QueueSize(QueueSizeUnit::BYTES, buffer));
    red->SetAttribute("MeanPktSize", UintegerValue(packet_bytes));
    red->SetAttribute("MinTh", DoubleValue(static_cast<double>(port.red_least_bytes)));
    red->SetAttribute("MaxTh", DoubleValue(static_cast<double>(port.red_most_bytes)));
    red->SetAttribute("LInterm", DoubleValue(1 / port.red_most_chance));
    red->SetAttribute("QW", DoubleValue(port.red_weight));
    red->SetAttribute("Gentle", BooleanValue(true));
    red->SetAttribute("Wait", BooleanValue(false));
    red->SetAttribute("LinkBandwidth", DataRateValue(own.rate));
    red->TraceConnectWithoutContext("Drop", MakeBoundCallback(&State::refused, this, &own.counts));
    red->TraceConnectWithoutContext("Enqueue", MakeBoundCallback(&State::waits, &own));
    return red;
  }

  // A tree: up by default, and down to each node below.
  void route(const std::vector<Ipv4Address>& gateways) {
    const auto routes = [&](std::uint32_t node) {
      return Ipv4StaticRoutingHelper().GetStaticRouting(nodes.Get(node)->GetObject<Ipv4>());
    };
    const auto interface = [&](const Ptr<NetDevice>& device) {
      return static_cast<std::uint32_t>(device->GetNode()->GetObject<Ipv4>()->GetInterfaceForDevice(device));
    };
    for (std::uint32_t node = 0; node < above.size(); ++node) {
      if (above[node] == UINT32_MAX) continue;
      routes(node)->SetDefaultRoute(gateways[node], interface(up[node].device));
      for (std::uint32_t below = node; above[below] != UINT32_MAX; below = above[below]) {
        routes(above[below])->AddHostRouteTo(addresses[node], addresses[below], interface(down[below].device));
      }
    }
  }

  Ptr<Socket> listen(std::uint32_t node) {
    const auto socket = Socket::CreateSocket(nodes.Get(node), UdpSocketFactory::GetTypeId());
    socket->SetAttribute("RcvBufSize", UintegerValue(UINT32_MAX));
    socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), frames_port));
    socket->SetIpRecvTos(true);
    socket->SetRecvCallback(MakeCallback(&State::receive, this));
    return socket;
  }

  // ---- what happens

  static void transmits(State* state, Device* device, Ptr<const Packet> packet) {
    ++state->hops;
    ++device->counts.packets;
    device->counts.bytes += packet->GetSize();
    device->free = Simulator::Now() + device->rate.CalculateBytesTxTime(packet->GetSize());
  }

  static void corrupted(State* state, Counts* counts, Ptr<const Packet> packet) {
    ++counts->lost;
    state->lost(packet);
  }

  static void refused(State* state, Counts* counts, Ptr<const QueueDiscItem> item) {
    ++counts->dropped;
    state->lost(item->GetPacket());
  }
  static void waits(Device* device, Ptr<const QueueDiscItem>) {
    device->counts.longest_queue = std::max(device->counts.longest_queue, device->waiting());
  }

  void lost(const Ptr<const Packet>& packet) const {
    FrameTag tag;
    if (packet->PeekPacketTag(tag)) user->gone(tag.frame());
  }

  void send(std::uint32_t frame, std::uint32_t from, std::uint32_t to, std::uint32_t bytes) {
    const auto packet = Create<Packet>(bytes - headers);
    packet->AddPacketTag(FrameTag(frame));
    InetSocketAddress there(addresses[to], frames_port);
    there.SetTos(2);  // ECN-capable
    sockets[from]->SendTo(packet, 0, there);
  }

  void receive(Ptr<Socket> socket) {
    Address from;
    while (const Ptr<Packet> packet = socket->RecvFrom(from)) {
      FrameTag tag;
      if (!packet->PeekPacketTag(tag)) continue;
      SocketIpTosTag tos;
      arrive(tag.frame(), packet->PeekPacketTag(tos) && (tos.GetTos() & 3) == 3);
    }
  }

  void arrive(std::uint32_t frame, bool marked) const { user->arrived(frame, marked); }
  void due(std::uint32_t kind, std::uint32_t index) const { user->due(kind, index); }
  void end() {
    ended = true;
    Simulator::Stop();
  }
  static Time until(std::int64_t at) {
    return NanoSeconds(std::max<std::int64_t>(0, at - Simulator::Now().GetNanoSeconds()));
  }
};

Wires::Wires(const std::vector<Node>& nodes, std::uint64_t seed) : state_(std::make_unique<State>(nodes, seed)) {}

Wires::~Wires() {
  Simulator::Destroy();
}

std::int64_t Wires::now() const {
  return Simulator::Now().GetNanoSeconds();
}

void Wires::add(std::int64_t at, std::uint32_t kind, std::uint32_t index) {
  Simulator::Schedule(State::until(at), &State::due, state_.get(), kind, index);
}

void Wires::carry(std::int64_t at, std::uint32_t frame, std::uint32_t from, std::uint32_t to, std::uint32_t bytes) {
  if (from == to) {
    Simulator::Schedule(State::until(at), &State::arrive, state_.get(), frame, false);
  } else if (at <= now()) {
    state_->send(frame, from, to, bytes);
  } else {
    Simulator::Schedule(State::until(at), &State::send, state_.get(), frame, from, to, bytes);
  }
}

std::size_t Wires::add_tcp(const Tcp& tcp) {
  const TypeId control = tcp.congestion_control == "dctcp"   ? TcpDctcp::GetTypeId()
                         : tcp.congestion_control == "cubic" ? FriendlyCubic::GetTypeId()
                         : tcp.congestion_control == "reno"  ? TcpLinuxReno::GetTypeId()
                                                             : TypeId();
  if (control == TypeId())
    throw std::invalid_argument("TCP's congestion control is cubic, dctcp or reno, not '" + tcp.congestion_control + "'");
  Config::SetDefault("ns3::TcpSocketBase::UseEcn", StringValue("On"));
  Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));  // Linux's
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
  for (const char* buffer : {"SndBufSize", "RcvBufSize"})
    Config::SetDefault(std::string("ns3::TcpSocket::") + buffer, UintegerValue(4 << 20));
  for (const std::uint32_t node : {tcp.from, tcp.to})
    state_->nodes.Get(node)->GetObject<TcpL4Protocol>()->SetAttribute("SocketType", TypeIdValue(control));
  const auto port = static_cast<std::uint16_t>(first_tcp_port + state_->tcp.size());
  const auto sink = CreateObject<PacketSink>();
  sink->SetAttribute("Protocol", TypeIdValue(TcpSocketFactory::GetTypeId()));
  sink->SetAttribute("Local", AddressValue(InetSocketAddress(Ipv4Address::GetAny(), port)));
  state_->nodes.Get(tcp.to)->AddApplication(sink);
  const auto source = CreateObject<BulkSendApplication>();
  source->SetAttribute("Protocol", TypeIdValue(TcpSocketFactory::GetTypeId()));
  source->SetAttribute("Remote", AddressValue(InetSocketAddress(state_->addresses[tcp.to], port)));
  source->SetAttribute("SendSize", UintegerValue(1448));
  source->SetStartTime(NanoSeconds(tcp.start_ns));
  if (tcp.stop_ns != INT64_MAX) source->SetStopTime(NanoSeconds(tcp.stop_ns));
  state_->nodes.Get(tcp.from)->AddApplication(source);
  state_->tcp.push_back(sink);
  return state_->tcp.size() - 1;
}

std::uint64_t Wires::tcp_bytes(std::size_t tcp) const {
  return state_->tcp[tcp]->GetTotalRx();
}

bool Wires::run(User& user, std::int64_t end) {
  state_->user = &user;
  if (end != INT64_MAX) Simulator::Schedule(State::until(end), &State::end, state_.get());
  Simulator::Run();
  return !state_->ended;
}

void Wires::stop() {
  Simulator::Stop();
}

const Counts& Wires::counts(std::uint32_t node, bool up) const {
  return (up ? state_->up : state_->down)[node].counts;
}

std::uint64_t Wires::queued_bytes(std::uint32_t node, bool up) const {
  return (up ? state_->up : state_->down)[node].waiting();
}

std::uint64_t Wires::hops() const {
  return state_->hops;
}

std::uint64_t Wires::events() const {
  return Simulator::GetEventCount();
}

}  // namespace netsum::sim::ns3_wires
