// Rings behind the bridge of a bump in the wire, on links that lose and repeat: every rank gets the sum.
// - Connections that the bump learns from their first packets, on links that keep the order as Ethernet does: in each life
// of
//   the hosts, whatever a stranger sends and however late first packets of a former life come.
// - Rings in several racks with a bump in each: their hosts see ordinary connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/virtio_net.h"
#include "protocol/netreduce/bump.h"
#include "protocol/netreduce/racks.h"
#include "protocol/netreduce/roce_host.h"
#include "support/virtual_network.h"
#include "wire/ethernet.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;
using netreduce::Bump;
using netreduce::Misfit;
using Bytes = std::vector<std::byte>;

constexpr std::size_t ip_at = virtio_net_header_bytes + wire::ethernet::header_bytes;
constexpr std::size_t at_source = 12, at_destination = 16;  // in an IPv4 header
constexpr std::uint64_t incarnation = 0x0123456789abcdef;
constexpr std::uint32_t qps_of_life = 0x100;
constexpr std::uint8_t bump_number = 200, stranger_number = 99;

Endpoint at(std::uint8_t number) {
  return {.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number}, .port = 7170};
}

// A packet as a host's port gives it: behind an Ethernet header from its own address to the destination's.
Bytes framed(std::span<const std::byte> packet) {
  Bytes frame(ip_at + packet.size());
  std::byte* const ethernet = frame.data() + virtio_net_header_bytes;
  ethernet[0] = ethernet[6] = std::byte{2};
  ethernet[5] = packet.size() > at_destination + 3 ? packet[at_destination + 3] : std::byte{};
  ethernet[11] = packet.size() > at_source + 3 ? packet[at_source + 3] : std::byte{};
  ethernet[12] = std::byte{0x08};
  std::copy(packet.begin(), packet.end(), frame.begin() + ip_at);
  return frame;
}

struct Tally {
  std::uint64_t stale = 0, forged = 0, dropped_restart = 0, dropped_host = 0, retransmissions = 0, restarts = 0;
};

class BumpedRing {
 public:
  BumpedRing(std::uint64_t seed, Tally& tally)
      : random_(seed), network_(seed, faults()), tally_(tally), ranks_(2 + static_cast<std::uint8_t>(random_.below(4))) {
    network_.now = Time{1s};
    netreduce::BridgeConfig bridge{.ports = {at(stranger_number)}};
    netreduce::LearningConfig learning;
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      bridge.ports.push_back(at(rank));
      learning.hosts.push_back(at(rank).address);
    }
    bump_ = std::make_unique<BumpNode>(*this, bridge);
    ring_.incarnation = incarnation;
    ring_.members = ranks_;
    ring_.window = 1 + static_cast<std::uint32_t>(random_.below(4));
    ring_.message_packets = 1 + static_cast<std::uint32_t>(random_.below(5));
    ring_.mtu = 256;
    memory_.resize(netreduce::Accelerator::memory_bytes(ring_) / sizeof(Line));
    EXPECT_EQ("", netreduce::check(ring_));
    EXPECT_TRUE(bump_->bump.accelerator().add_ring(ring_, std::as_writable_bytes(std::span(memory_))));
    bump_->bump.accelerator().learn(learning);
    bump_->bump.accelerator().on_change([&](const netreduce::ConnectionChange& change) {
      if (change.kind == netreduce::ConnectionChange::Kind::forgotten) return;
      EXPECT_EQ(life_, change.known.connection.destination_qp / qps_of_life) << "of another life, or forged";
      tally_.restarts += change.kind == netreduce::ConnectionChange::Kind::restarted ? 1 : 0;
    });
  }

  // Hosts with new queue pairs, which sum some tensors. What the hosts before them sent first may still come.
  void live() {
    former_.insert(former_.end(), firsts_.begin(), firsts_.end());
    firsts_.clear();
    make_hosts();
    const std::size_t calls = 1 + random_.below(5);
    std::vector<std::vector<std::vector<std::uint32_t>>> tensors(calls);
    std::vector<std::vector<std::uint32_t>> expected(calls);
    for (std::size_t number = 0; number < calls; ++number) {
      expected[number].resize(1 + random_.below(2000));
      for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
        auto& tensor = tensors[number].emplace_back(expected[number].size());
        for (std::size_t i = 0; i < tensor.size(); ++i)
          expected[number][i] += tensor[i] = static_cast<std::uint32_t>(random_.next());
      }
    }
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      for (std::size_t number = 0; number < calls; ++number) {
        stream::Operation operation;
        operation.number = number;
        operation.elements = expected[number].size();
        operation.dtype = DType::int32;
        operation.data = tensors[number][rank].data();
        Host& host = *hosts_[rank];
        ASSERT_TRUE(host.host.submit(operation, network_.now, host.sink));
        host.sink.flush();
      }
    }
    const Time end = network_.now + 1000s;
    const auto done = [&](const std::unique_ptr<Host>& host) {
      host->completed += host->host.take_completed().size();
      return host->completed == calls && host->host.drained();
    };
    while (!std::all_of(hosts_.begin(), hosts_.end(), done)) {
      ASSERT_TRUE(network_.step(end)) << failures() << "not done";
    }
    for (std::size_t number = 0; number < calls; ++number) {
      for (std::uint8_t rank = 0; rank < ranks_; ++rank)
        ASSERT_EQ(expected[number], tensors[number][rank]) << "rank " << int{rank};
    }
    for (const auto& host : hosts_) {
      ASSERT_EQ("", host->host.failure());
      tally_.retransmissions += host->host.sending().retransmissions;
    }
    // They end, and nobody hears of them for a while: so long that others may take their places.
    hosts_.clear();
    network_.now += netreduce::Accelerator::restart_after + 1ms;
  }

  void count() {
    const netreduce::AcceleratorCounters& c = bump_->bump.accelerator().counters();
    tally_.dropped_restart += c.dropped_restart;
    tally_.dropped_host += c.dropped_misfit[static_cast<std::size_t>(Misfit::host)];
  }

 private:
  [[nodiscard]] std::string failures() const {
    std::string all;
    for (const auto& host : hosts_) all += host->host.failure() + " ";
    return all;
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Host final : VirtualNode {
    Host(VirtualNetwork& network, const Endpoint& self, const netreduce::RoceHostConfig& config)
        : VirtualNode(network, self), host(config) {}
    void receive(const RxView& packet) override { host.on_packets({&packet, 1}, now(), sink); }
    [[nodiscard]] Time next_timeout() const override { return host.next_timeout(); }
    void on_timer() override { host.on_timer(now(), sink); }

    netreduce::RoceHost host;
    std::size_t completed = 0;
  };
  // The network carries IP packets alone.
  struct BumpNode final : VirtualNode {
    BumpNode(BumpedRing& in, const netreduce::BridgeConfig& bridge)
        : VirtualNode(in.network_, at(bump_number), ip_at), ring(in), bump(bridge) {}
    void receive(const RxView& packet) override {
      carry(packet.bytes, packet.source);
      ring.harm(packet.bytes);
    }
    void carry(std::span<const std::byte> packet, const Endpoint& port) {
      const Bytes frame = framed(packet);
      const RxView view{frame, port};
      bump.on_packets({&view, 1}, now(), sink);
      sink.flush();
      bump.accelerator().check();
    }

    BumpedRing& ring;
    Bump bump;
  };

  Faults faults() {
    Faults f;
    f.least_delay = f.most_delay = std::chrono::microseconds(5 + random_.below(100));
    f.loss = static_cast<double>(random_.below(100)) / 800;
    f.duplicate = static_cast<double>(random_.below(100)) / 400;
    return f;
  }

  void make_hosts() {
    ++life_;
    std::vector<netreduce::Member> members(ranks_);
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      members[rank].address = at(rank).address;
      members[rank].send_qp = qps_of_life * life_ + 2 * rank;
      members[rank].receive_qp = members[rank].send_qp + 1;
      members[rank].send_psn = static_cast<std::uint32_t>(random_.next()) & wire::roce::psn_mask;
      members[rank].memory_address = 0x10000 * life_;
      members[rank].memory_key = life_;
    }
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      netreduce::RoceHostConfig c;
      c.worker.incarnation = incarnation;
      c.worker.rank = rank;
      c.worker.world_size = ranks_;
      c.worker.window = ring_.window;
      c.worker.message_packets = ring_.message_packets;
      c.worker.mtu = ring_.mtu;
      c.self = members[rank];
      c.successor = members[(rank + 1) % ranks_];
      c.predecessor = members[(rank + ranks_ - 1) % ranks_];
      c.accelerator = at(bump_number);
      hosts_.push_back(std::make_unique<Host>(network_, at(rank), c));
    }
    psns_.clear();
    for (const netreduce::Member& member : members) psns_.push_back(member.send_psn);
  }

  // `packet` was seen. A first packet of a former life comes, or one like it from a stranger.
  void harm(std::span<const std::byte> packet) {
    wire::roce::Packet parsed;
    if (wire::roce::parse(packet, parsed) != wire::ParseError::none) return;
    const std::uint8_t rank = parsed.ip.source[15];
    const bool begins =
        wire::roce::shape_of(parsed.bth.opcode).request && rank < psns_.size() && parsed.bth.psn == psns_[rank];
    if (begins && firsts_.size() < 32) firsts_.emplace_back(packet.begin(), packet.end());
    if (!former_.empty() && random_.chance(0.05)) {
      const Bytes& stale = former_[random_.below(former_.size())];
      ++tally_.stale;
      bump_->carry(stale, at(std::to_integer<std::uint8_t>(stale[at_source + 3])));
    }
    if (!firsts_.empty() && random_.chance(0.05)) {
      forge(firsts_[random_.below(firsts_.size())], at(stranger_number));
    }
    // In the name of a host of which the ring hears right now.
    const bool gradient =
        wire::roce::shape_of(parsed.bth.opcode).request && bump_->bump.accelerator().bound(incarnation).contains(rank);
    if (gradient && random_.chance(0.05)) {
      const auto own = std::find_if(firsts_.begin(), firsts_.end(), [&](const Bytes& each) {
        return std::to_integer<std::uint8_t>(each[at_source + 3]) == rank;
      });
      if (own != firsts_.end()) forge(*own, at(rank));
    }
  }

  // The beginning of a stream on another connection.
  void forge(Bytes first, const Endpoint& from) {
    wire::roce::Packet parsed;
    ASSERT_EQ(wire::ParseError::none, wire::roce::parse(first, parsed));
    const Bytes payload(parsed.payload.begin(), parsed.payload.end());
    parsed.payload = payload;
    parsed.ip.source = from.address;
    parsed.bth.destination_qp ^= 0x800000;
    wire::roce::write(first, parsed);
    ++tally_.forged;
    bump_->carry(first, from);
  }

  Random random_;
  VirtualNetwork network_;
  Tally& tally_;
  const std::uint8_t ranks_;
  netreduce::RingConfig ring_;
  std::vector<Line> memory_;
  std::unique_ptr<BumpNode> bump_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::uint32_t> psns_;     // of each rank's first packet
  std::vector<Bytes> firsts_, former_;  // packets that begin message 0: of this life, and of those before
  std::uint32_t life_ = 0;
};

TEST(NetreduceBumpCluster, LearnedRingsAreSummedInEveryLife) {
  Tally all;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    BumpedRing ring(seed, all);
    for (int life = 0; life < 3; ++life) {
      SCOPED_TRACE("life " + std::to_string(life));
      ring.live();
      if (HasFatalFailure() || HasNonfatalFailure()) FAIL();
    }
    ring.count();
  }
  // Everything that can happen did.
  EXPECT_GT(all.stale, 1000U);
  EXPECT_GT(all.forged, 1000U);
  EXPECT_GT(all.dropped_restart, 100U);
  EXPECT_GT(all.dropped_host, 100U);
  EXPECT_GT(all.retransmissions, 300U);
  EXPECT_GE(all.restarts, 2U * 150U) << "each life's";
}

// ---- racks

using netreduce::at_root;
using netreduce::Tree;

const std::vector<Tree>& trees() {
  static const std::vector<Tree> all{
      {{at_root, at_root}, {0, 0, 1, 1}},                    // the paper's Figure 5
      {{at_root, at_root}, {0, 1, 0, 1, 0, 1}},              // every connection crosses racks
      {{at_root, at_root}, {0, 1}},                          // two ranks, each in a rack of its own
      {{at_root}, {0, 0, 0}},                                // all below one bump
      {{at_root}, {at_root, 0, 0, at_root}},                 // ranks at the root too
      {{at_root, 0, 0, at_root, 3, 3}, {1, 1, 2, 4, 4, 5}},  // three levels
  };
  return all;
}

constexpr std::uint16_t datagrams_port = 7171;

Endpoint cable_of(std::uint32_t bump) {
  return at(static_cast<std::uint8_t>(bump == at_root ? bump_number : bump_number + 1 + bump));
}
Endpoint socket_of(std::uint32_t bump) {
  Endpoint endpoint = cable_of(bump);
  endpoint.port = datagrams_port;
  return endpoint;
}

// A ring's hosts and bumps. The cables are a tree: of hosts to their bumps, and of those to the next ones.
class BumpedRacks {
 public:
  BumpedRacks(std::uint64_t seed, const Tree& tree, const Faults& faults)
      : random_(seed), network_(seed, faults), tree_(tree), ranks_(static_cast<std::uint8_t>(tree.switch_of_rank.size())) {
    network_.now = Time{1s};
    ring_.incarnation = incarnation;
    ring_.members = ranks_;
    ring_.window = 1 + static_cast<std::uint32_t>(random_.below(4));
    ring_.message_packets = 1 + static_cast<std::uint32_t>(random_.below(5));
    ring_.mtu = 256;
    make_hosts();
    for (std::uint32_t bump = 0; bump < tree.parent_of_switch.size(); ++bump) begin(bump);
    begin(at_root);
    for (const auto& bump : bumps_) add_ring(*bump);
    network_.lose = [this](const Endpoint& from, const Endpoint&, std::span<const std::byte> bytes) {
      if (from.address[15] < ranks_) note_sent(bytes);
      return false;
    };
  }

  void submit(std::size_t elements) {
    expected_.assign(elements, 0);
    tensors_.clear();
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      auto& tensor = tensors_.emplace_back(elements);
      for (std::size_t i = 0; i < elements; ++i) expected_[i] += tensor[i] = static_cast<std::uint32_t>(random_.next());
    }
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      stream::Operation operation;
      operation.elements = elements;
      operation.dtype = DType::int32;
      operation.data = tensors_[rank].data();
      ASSERT_TRUE(hosts_[rank]->host.submit(operation, network_.now, hosts_[rank]->sink));
      hosts_[rank]->sink.flush();
    }
  }
  void run() {
    const Time end = network_.now + 1000s;
    const auto done = [&](const std::unique_ptr<Host>& host) {
      host->completed += host->host.take_completed().size();
      return host->completed == 1 && host->host.drained();
    };
    while (!std::all_of(hosts_.begin(), hosts_.end(), done)) ASSERT_TRUE(network_.step(end)) << "not done";
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) ASSERT_EQ(expected_, tensors_[rank]) << "rank " << int{rank};
    for (const auto& host : hosts_) ASSERT_EQ("", host->host.failure());
  }
  void run_until(Time end) {
    while (network_.step(end)) continue;
  }

  // Another process in the place of the bump; it knows what the file of the first one knew.
  void restart(std::uint32_t bump) {
    for (auto& each : bumps_) {
      if (each->number != bump) continue;
      const std::vector<netreduce::Connection> known = each->bump.accelerator().known();
      each.reset();
      each = std::make_unique<RackBump>(*this, bump, bridge_of(bump));
      for (const netreduce::Connection& connection : known) each->bump.accelerator().know({connection, {}}, network_.now);
    }
  }

  // All bridges know where everybody is.
  void introduce() {
    for (const auto& host : hosts_) {
      wire::roce::Packet hello;
      wire::roce::set_addresses(hello, host->self().address, at(stranger_number).address);
      hello.bth.opcode = wire::roce::Opcode::congestion_notification;
      Bytes bytes(wire::roce::packet_bytes(hello));
      wire::roce::write(bytes, hello);
      network_.send(host->self(), cable_of(tree_.switch_of_rank[host->self().address[15]]), bytes);
    }
    run_until(network_.now + 1ms);
  }

  // A frame with the newest datagram in it, as a host may send one.
  void put_datagram_in_a_frame() {
    ASSERT_FALSE(newest_datagram_.empty());
    if (bridge_of(newest_datagram_to_).ports.size() < 2) return;  // a frame goes nowhere from there
    Bytes frame(ip_at);
    frame[virtio_net_header_bytes] = frame[virtio_net_header_bytes + 6] = std::byte{2};
    frame[virtio_net_header_bytes + 5] = std::byte{stranger_number};  // nobody
    frame[virtio_net_header_bytes + 11] = std::byte{bump_number};     // heard of nowhere else
    frame[virtio_net_header_bytes + 12] = std::byte{0x86};
    frame[virtio_net_header_bytes + 13] = std::byte{0xdd};
    frame.insert(frame.end(), newest_datagram_.begin(), newest_datagram_.end());
    const RxView view{frame, bridge_of(newest_datagram_to_).ports.front()};
    Bump& bump = bump_of(newest_datagram_to_);
    const netreduce::RingCounters before = *bump.accelerator().ring_counters(incarnation);
    RecordingSink sink;
    bump.on_packets({&view, 1}, network_.now, sink);
    EXPECT_TRUE(sink.sent().empty());
    EXPECT_EQ(before.packets, bump.accelerator().ring_counters(incarnation)->packets);
    EXPECT_EQ(1U, bump.counters().dropped_virtual);
  }

  [[nodiscard]] std::uint64_t retransmissions() const {
    std::uint64_t sum = 0;
    for (const auto& host : hosts_) sum += host->host.sending().retransmissions;
    return sum;
  }
  [[nodiscard]] std::uint64_t count(std::uint64_t netreduce::RingCounters::*counter) const {
    std::uint64_t sum = 0;
    for (const auto& bump : bumps_) sum += bump->bump.accelerator().ring_counters(incarnation)->*counter;
    return sum;
  }
  [[nodiscard]] Bump& bump_of(std::uint32_t number) {
    return (*std::find_if(bumps_.begin(), bumps_.end(), [&](const auto& each) { return each->number == number; }))->bump;
  }

  std::uint64_t out_of_order = 0;  // requests that came to hosts behind a gap, or again

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Host final : VirtualNode {
    Host(BumpedRacks& in, const Endpoint& self, const netreduce::RoceHostConfig& config)
        : VirtualNode(in.network_, self), racks(in), host(config), next(in.psn_of_predecessor(self.address[15])) {}
    void receive(const RxView& packet) override {
      racks.judge(*this, packet.bytes);
      host.on_packets({&packet, 1}, now(), sink);
    }
    [[nodiscard]] Time next_timeout() const override { return host.next_timeout(); }
    void on_timer() override { host.on_timer(now(), sink); }

    BumpedRacks& racks;
    netreduce::RoceHost host;
    std::uint32_t next;  // the first PSN that has not come
    std::size_t completed = 0;
  };
  struct RackBump {
    // Both ends of the bump on the network, which carries IP packets alone.
    struct Cables final : VirtualNode {
      Cables(RackBump& of, VirtualNetwork& network) : VirtualNode(network, cable_of(of.number), ip_at), own(of) {}
      void receive(const RxView& packet) override {
        const Bytes frame = framed(packet.bytes);
        const RxView view{frame, packet.source};
        own.bump.on_packets({&view, 1}, now(), own.split);
        own.split.flush();
        own.bump.accelerator().check();
      }
      RackBump& own;
    };
    struct Socket final : VirtualNode {
      Socket(RackBump& of, VirtualNetwork& network) : VirtualNode(network, socket_of(of.number)), own(of) {}
      void receive(const RxView& packet) override {
        own.racks.newest_datagram_.assign(packet.bytes.begin(), packet.bytes.end());
        own.racks.newest_datagram_to_ = own.number;
        own.bump.on_datagrams({&packet, 1}, now(), own.split);
        own.split.flush();
        own.bump.accelerator().check();
      }
      RackBump& own;
    };
    struct Split final : Sink {
      explicit Split(RackBump& of) : own(of) {}
      ~Split() = default;
      std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
        return (to.port == datagrams_port ? own.socket.sink : own.cables.sink).datagram(to, bytes);
      }
      void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
        own.cables.sink.multicast(packet, to);
      }
      void flush() override {
        own.cables.sink.flush();
        own.socket.sink.flush();
      }
      RackBump& own;
    };
    RackBump(BumpedRacks& in, std::uint32_t of, const netreduce::BridgeConfig& bridge)
        : racks(in), number(of), bump(bridge), cables(*this, in.network_), socket(*this, in.network_) {}

    BumpedRacks& racks;
    const std::uint32_t number;
    Bump bump;
    std::vector<Line> memory;
    Cables cables;
    Socket socket;
    Split split{*this};
  };

  [[nodiscard]] std::uint32_t psn_of_predecessor(std::uint8_t rank) const {
    return members_[(rank + ranks_ - 1U) % ranks_].send_psn;
  }

  void make_hosts() {
    members_.resize(ranks_);
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      members_[rank].address = at(rank).address;
      members_[rank].send_qp = 0x20000U + 2 * rank;
      members_[rank].receive_qp = members_[rank].send_qp + 1;
      members_[rank].send_psn = static_cast<std::uint32_t>(random_.next()) & wire::roce::psn_mask;
    }
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      netreduce::RoceHostConfig c;
      c.worker.incarnation = incarnation;
      c.worker.rank = rank;
      c.worker.world_size = ranks_;
      c.worker.window = ring_.window;
      c.worker.message_packets = ring_.message_packets;
      c.worker.mtu = ring_.mtu;
      c.self = members_[rank];
      c.successor = members_[(rank + 1) % ranks_];
      c.predecessor = members_[(rank + ranks_ - 1) % ranks_];
      c.accelerator = cable_of(tree_.switch_of_rank[rank]);
      hosts_.push_back(std::make_unique<Host>(*this, at(rank), c));
    }
  }

  [[nodiscard]] netreduce::BridgeConfig bridge_of(std::uint32_t bump) const {
    netreduce::BridgeConfig bridge;
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      if (tree_.switch_of_rank[rank] == bump) bridge.ports.push_back(at(rank));
    }
    for (std::uint32_t below = 0; below < tree_.parent_of_switch.size(); ++below) {
      if (tree_.parent_of_switch[below] == bump) bridge.ports.push_back(cable_of(below));
    }
    if (bump != at_root) bridge.ports.push_back(cable_of(tree_.parent_of_switch[bump]));
    return bridge;
  }
  void begin(std::uint32_t bump) {
    bumps_.push_back(std::make_unique<RackBump>(*this, bump, bridge_of(bump)));
    // As if foreign rings of the same hosts were learned: packets of this one are none of theirs.
    netreduce::LearningConfig learning;
    for (const netreduce::Member& member : members_) learning.hosts.push_back(member.address);
    bumps_.back()->bump.accelerator().learn(learning);
  }
  void add_ring(RackBump& bump) {
    const netreduce::TunnelRing ring = netreduce::tunnel_ring(ring_, members_, tree_, bump.number,
                                                              {{}, [](std::uint32_t other) { return socket_of(other); }});
    if (ring.ring.lines.empty()) return;  // no ranks below
    EXPECT_EQ("", netreduce::check(ring.ring));
    bump.memory.resize(netreduce::Accelerator::memory_bytes(ring.ring) / sizeof(Line));
    EXPECT_TRUE(bump.bump.tunnel().add_ring(ring, std::as_writable_bytes(std::span(bump.memory))));
  }

  static std::string headers_of(const wire::roce::Packet& packet) {
    Bytes bytes;
    append_bytes(bytes, packet.ip.source, packet.ip.destination, packet.ip.traffic_class, packet.ip.identification,
                 packet.ip.fragment, packet.source_port, packet.bth.opcode, packet.bth.ack_request, packet.bth.solicited,
                 packet.bth.pad, packet.bth.partition_key, packet.bth.destination_qp, packet.bth.psn, packet.reth.address,
                 packet.reth.key, packet.reth.length, packet.immediate, packet.payload.size());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void note_sent(std::span<const std::byte> bytes) {
    wire::roce::Packet packet;
    ASSERT_EQ(wire::ParseError::none, wire::roce::parse(bytes, packet));
    if (wire::roce::shape_of(packet.bth.opcode).request) sent_.insert(headers_of(packet));
  }
  // What comes to a host is its own, and as its sender sent it but for values and seal.
  void judge(Host& host, std::span<const std::byte> bytes) {
    wire::roce::Packet packet;
    if (wire::roce::parse(bytes, packet) != wire::ParseError::none || !wire::roce::icrc_valid(bytes)) {
      ADD_FAILURE() << "a damaged packet";
      return;
    }
    if (packet.ip.destination != host.self().address) return;  // flooded
    if (!wire::roce::shape_of(packet.bth.opcode).request) return;
    EXPECT_NE(0U, wire::netreduce::read_seal(packet.payload)) << "values that nobody has summed, or none";
    EXPECT_TRUE(sent_.contains(headers_of(packet))) << "headers that nobody sent";
    if (packet.bth.psn != host.next) {
      ++out_of_order;
      return;
    }
    host.next = (host.next + 1) & wire::roce::psn_mask;
  }

  Random random_;
  VirtualNetwork network_;
  const Tree& tree_;
  const std::uint8_t ranks_;
  netreduce::RingConfig ring_;
  std::vector<netreduce::Member> members_;
  std::vector<std::unique_ptr<RackBump>> bumps_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::uint32_t> expected_;
  std::vector<std::vector<std::uint32_t>> tensors_;
  std::set<std::string> sent_;
  Bytes newest_datagram_;
  std::uint32_t newest_datagram_to_ = 0;
};

TEST(NetreduceBumpCluster, HostsInSeveralRacksSeeOrdinaryConnections) {
  for (std::size_t tree = 0; tree < trees().size(); ++tree) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE("tree " + std::to_string(tree) + ", seed " + std::to_string(seed));
      BumpedRacks racks(seed, trees()[tree], {});
      racks.introduce();
      racks.submit(3000);
      racks.run();
      EXPECT_EQ(0U, racks.out_of_order);
      EXPECT_EQ(0U, racks.retransmissions());
      // One sum of each bump below the root travels, and is not repeated.
      EXPECT_EQ(racks.count(&netreduce::RingCounters::sent_up), racks.count(&netreduce::RingCounters::totals));
      EXPECT_GT(racks.count(&netreduce::RingCounters::sent_up), 0U);
      racks.put_datagram_in_a_frame();
      if (::testing::Test::HasFailure()) FAIL();
    }
  }
}

// First packets go to hosts of which no bridge has heard. Those in another rack may never send anything here.
TEST(NetreduceBumpCluster, RacksAreSummedThatBeginInSilence) {
  for (const Tree& tree : trees()) {
    BumpedRacks racks(3, tree, {});
    racks.submit(3000);
    racks.run();
  }
}

TEST(NetreduceBumpCluster, RacksAreSummedOverBadLinks) {
  std::uint64_t retransmissions = 0, answered = 0;
  for (std::size_t tree = 0; tree < trees().size(); ++tree) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE("tree " + std::to_string(tree) + ", seed " + std::to_string(seed));
      Faults faults;
      faults.loss = 0.02;
      faults.duplicate = 0.02;
      faults.most_delay = 40us;
      faults.late = 0.001;
      faults.latest = 300ms;
      BumpedRacks racks(seed, trees()[tree], faults);
      racks.submit(3000);
      racks.run();
      retransmissions += racks.retransmissions();
      answered += racks.count(&netreduce::RingCounters::naks_answered);
      if (::testing::Test::HasFailure()) FAIL();
    }
  }
  EXPECT_GT(retransmissions, 100U);
  EXPECT_GT(answered, 20U);
}

// What it had added is lost, so nothing is completed. But no host takes a neighbour's packet for a sum (judge()).
TEST(NetreduceBumpCluster, ABumpThatIsStartedAgainLetsNothingOfItsRingPass) {
  for (const std::uint32_t bump : {0U, 1U, at_root}) {
    SCOPED_TRACE("bump " + std::to_string(bump));
    BumpedRacks racks(7, trees().front(), {});
    racks.submit(30'000);
    racks.run_until(Time{1s + 300us});
    racks.restart(bump);
    racks.run_until(Time{20s});
    EXPECT_GT(racks.retransmissions(), 0U);
    if (bump == at_root) continue;
    EXPECT_GT(racks.bump_of(bump).accelerator().counters().dropped_known, 0U);
  }
}

}  // namespace
}  // namespace netsum::testing
