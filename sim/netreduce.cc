#include "sim/netreduce.h"

#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "protocol/netreduce/roce_host.h"
#include "protocol/netreduce/tunnel.h"
#include "session/netreduce_job.h"
#include "sim/aggregator_host.h"
#include "sim/host.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::sim {
namespace {

using netreduce::RingCounters;
using wire::ParseError;
using wire::roce::Opcode;
using wire::roce::Packet;

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

std::uint64_t sum(const std::uint64_t (&values)[wire::parse_error_kinds]) {
  return std::accumulate(std::begin(values), std::end(values), std::uint64_t{0});
}

void count_malformed(Tally& tally, const std::string& where, const std::uint64_t (&malformed)[wire::parse_error_kinds]) {
  for (std::size_t i = 1; i < wire::parse_error_kinds; ++i) {
    tally.events[where + "_malformed_" + wire::to_string(static_cast<ParseError>(i))] += malformed[i];
  }
}

void add(RingCounters& total, const RingCounters& c) {
  total.sums += c.sums;
  total.results += c.results;
  total.sent_up += c.sent_up;
  total.totals += c.totals;
  total.repeats_total += c.repeats_total;
  total.sent_headers += c.sent_headers;
  total.early += c.early;
  total.repeats_answered += c.repeats_answered;
  total.repeats_held += c.repeats_held;
  total.repeats_waiting += c.repeats_waiting;
  total.dropped_icrc += c.dropped_icrc;
  total.dropped_header += c.dropped_header;
  total.dropped_unplaced += c.dropped_unplaced;
  total.dropped_old += c.dropped_old;
  total.dropped_raw += c.dropped_raw;
  total.dropped_mismatch += c.dropped_mismatch;
}

// Rings at one switch of a tree, or at the only switch.
class Accelerating {
 public:
  void add(const LaneStart& start, std::uint32_t a_switch) {
    const auto order = start.plan.unordered ? netreduce::Order::arrival : netreduce::Order::ring;
    const session::SwitchEndpoint below = switch_endpoints(start.scenario, start.start.admission.placement);
    const netreduce::TunnelRing ring = session::tunnel_ring(
        start.start, start.lane, a_switch,
        [&](std::uint32_t other, std::size_t lane) {
          return other == netreduce::at_root ? start.aggregator : below(other, lane);
        },
        order);
    if (const std::string error = netreduce::check(ring.ring); !error.empty())
      throw Violation("a ring that cannot be: " + error);
    Running& running = running_[start.start.admission.job_epoch];
    running.incarnation = ring.ring.incarnation;
    running.agreed = start.agreed();
    running.lines.resize(netreduce::Accelerator::memory_bytes(ring.ring) / sizeof(CacheLine));
    if (!tunnel_.add_ring(ring, std::as_writable_bytes(std::span(running.lines)))) {
      throw Violation("a ring was made twice, or two ranks have the same queue pair");
    }
    // The routes while packets pass unsummed: the same, without rings.
    running.bypass_lines.resize(running.lines.size());
    netreduce::TunnelRing nothing = ring;
    nothing.ring.layout.magic_bytes = 16;
    static_cast<void>(bypass_.add_ring(nothing, std::as_writable_bytes(std::span(running.bypass_lines))));
    bypass_.accelerator().remove_ring(ring.ring.incarnation);
    bypass_.accelerator().forget(never);
  }
  [[nodiscard]] bool has(std::uint64_t epoch) const { return running_.contains(epoch); }

  void remove(std::uint64_t epoch) {
    const std::uint64_t incarnation = running_.at(epoch).incarnation;
    netsum::sim::add(ended_, *tunnel_.accelerator().ring_counters(incarnation));
    tunnel_.remove_ring(incarnation);
    bypass_.remove_ring(incarnation);
    running_.erase(epoch);
  }

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
    received_ += packets.size();
    (bypassed_ ? bypass_ : tunnel_).on_packets(packets, now, sink);
  }
  void bypass(bool on) { bypassed_ = on; }

  [[nodiscard]] session::JobView look(std::uint64_t epoch) const {
    session::JobView view;
    const auto found = running_.find(epoch);
    if (found == running_.end()) return view;
    const netreduce::Accelerator& accelerator = tunnel_.accelerator();
    if (const auto mismatch = accelerator.mismatch(found->second.incarnation)) {
      view.mismatch = "ranks " + std::to_string(mismatch->first_rank) + " and " + std::to_string(mismatch->second_rank) +
                      " issued different calls as message " + std::to_string(mismatch->message);
    }
    if (const auto stall = accelerator.stall(found->second.incarnation)) view.missing = stall->missing;
    return view;
  }

  void check() const {
    std::uint64_t seen = 0;
    for (const netreduce::Tunnel* tunnel : {&tunnel_, &bypass_}) {
      const netreduce::TunnelCounters& c = tunnel->counters();
      seen += sum(c.malformed) + c.unknown + c.dropped_source + c.passed + c.taken;
    }
    if (seen != received_) throw Violation("the tunnel's counters do not add up to what it received");
    tunnel_.accelerator().check();
    for (const auto& [epoch, running] : running_) {
      const RingCounters& c = *tunnel_.accelerator().ring_counters(running.incarnation);
      if (running.agreed && c.dropped_early != 0) throw Violation("a host went on before its window allowed it");
      if (running.agreed && (c.dropped_mismatch != 0 || c.dropped_shape != 0))
        throw Violation("a mismatch was found in calls that agree");
      if (running.agreed && c.dropped_misplaced != 0) throw Violation("a packet contradicts its message");
    }
  }
  [[nodiscard]] std::size_t jobs() const { return running_.size(); }

  void count_events(Tally& tally) const {
    RingCounters total = ended_;
    for (const auto& [epoch, running] : running_)
      netsum::sim::add(total, *tunnel_.accelerator().ring_counters(running.incarnation));
    const netreduce::TunnelCounters& t = tunnel_.counters();
    auto& e = tally.events;
    e["ring_sum_sent_up"] += total.sent_up;
    e["ring_total"] += total.totals;
    e["ring_repeat_total"] += total.repeats_total;
    e["ring_header_sent_on"] += total.sent_headers;
    e["ring_sum"] += total.sums;
    e["ring_result"] += total.results;
    e["ring_early_result"] += total.early;
    e["ring_repeat_answered"] += total.repeats_answered;
    e["ring_repeat_held"] += total.repeats_held;
    e["ring_repeat_waiting"] += total.repeats_waiting;
    e["ring_dropped_icrc"] += total.dropped_icrc;
    e["ring_dropped_unplaced"] += total.dropped_unplaced;
    e["ring_dropped_old"] += total.dropped_old;
    e["ring_dropped_raw"] += total.dropped_raw;
    e["ring_dropped_mismatch"] += total.dropped_mismatch;
    e["tunnel_passed"] += t.passed;
    e["tunnel_unknown"] += t.unknown;
    e["tunnel_dropped_source"] += t.dropped_source;
    e["tunnel_bypassed"] += bypass_.counters().passed;
    count_malformed(tally, "tunnel", t.malformed);
  }

 private:
  struct Running {
    std::uint64_t incarnation = 0;
    std::vector<CacheLine> lines, bypass_lines;
    bool agreed = true;
  };

  std::map<std::uint64_t, Running> running_;  // by job epoch
  netreduce::Tunnel tunnel_, bypass_;
  bool bypassed_ = false;
  std::uint64_t received_ = 0;
  RingCounters ended_;
};

class RootLane final : public AggregatorLane {
 public:
  void start_job(const LaneStart& start) override { rings_.add(start, netreduce::at_root); }
  void stop_job(std::uint64_t epoch) override { rings_.remove(epoch); }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { rings_.on_packets(packets, now, sink); }
  void on_timer(Time, Sink&) override {}
  [[nodiscard]] Time next_timeout() const override { return never; }
  void bypass(bool on) override { rings_.bypass(on); }
  [[nodiscard]] session::JobView look(std::uint64_t epoch) const override { return rings_.look(epoch); }
  void check() const override { rings_.check(); }
  [[nodiscard]] std::size_t jobs() const override { return rings_.jobs(); }
  void count_events(Tally& tally) const override { rings_.count_events(tally); }

 private:
  Accelerating rings_;
};

class RackLane final : public SwitchLane {
 public:
  [[nodiscard]] bool install(const LaneStart& start, const InstallCall& call) override {
    if (rings_.has(start.start.admission.job_epoch)) return true;
    if (call.again) return false;
    rings_.add(start, call.a_switch);
    return true;
  }
  void remove(std::uint64_t epoch) override {
    if (rings_.has(epoch)) rings_.remove(epoch);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { rings_.on_packets(packets, now, sink); }
  void bypass(bool on) override { rings_.bypass(on); }
  [[nodiscard]] session::JobView look(std::uint64_t epoch) const override { return rings_.look(epoch); }
  void check() const override { rings_.check(); }
  void check_idle() const override {
    if (rings_.jobs() != 0) throw Violation("a switch has rings of a job that has ended");
  }
  void count_events(Tally& tally) const override { rings_.count_events(tally); }

 private:
  Accelerating rings_;
};

class RingWorker final : public WorkerLane {
 public:
  explicit RingWorker(const netreduce::RoceHostConfig& config) : host_(config) {}

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    return host_.submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    received_ += packets.size();
    host_.on_packets(packets, now, sink);
  }
  void on_timer(Time now, Sink& sink) override { host_.on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return host_.next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return host_.take_completed(); }
  [[nodiscard]] bool drained() const override { return host_.drained(); }

  [[nodiscard]] std::optional<LaneFailure> failure() const override {
    LaneFailure failure;
    failure.unsealed = host_.failure();
    if (failure.unsealed.empty()) return std::nullopt;
    if (const auto stall = host_.worker().oldest_stall()) failure.operation = stall->operation;
    return failure;
  }
  [[nodiscard]] std::optional<session::Stall> oldest_stall() const override {
    const auto stall = host_.worker().oldest_stall();
    if (!stall) return std::nullopt;
    return session::Stall{0, stall->operation, stall->chunk, {}, {}};
  }

  void check() const override {
    const netreduce::RoceHostCounters& c = host_.counters();
    if (received_ != c.packets + sum(c.malformed) + c.dropped_icrc + c.foreign) {
      throw Violation("a host's counters do not add up to what it received");
    }
    if (host_.worker().idle() && host_.worker().oldest_stall()) throw Violation("a worker without operations waits");
  }

  void count_events(Tally& tally) const override {
    auto& e = tally.events;
    const roce::QueuePairCounters &s = host_.sending(), &r = host_.receiving();
    e["host_message_received"] += host_.worker().counters().messages_received;
    e["host_retransmission"] += s.retransmissions;
    e["host_timeout"] += s.timeouts;
    e["host_nak_received"] += s.naks_received;
    e["host_stale_ack"] += s.stale_acks;
    e["host_nak_sent"] += r.naks_sent;
    e["host_duplicate"] += r.duplicates;
    e["host_out_of_order"] += r.out_of_order;
    e["host_dropped_icrc"] += host_.counters().dropped_icrc;
    e["host_foreign"] += host_.counters().foreign;
    if (host_.worker().failure()) ++e["host_refused_a_seal"];
    count_malformed(tally, "host", host_.counters().malformed);
  }

 private:
  netreduce::RoceHost host_;
  std::uint64_t received_ = 0;
};

// Checks that a repeated gradient packet has the same content, and that a result is the same for every receiver.
class RingTap final : public Tap {
 public:
  explicit RingTap(std::uint32_t switches) : switches_(switches) {}
  void on_send(const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) override {
    Packet packet;
    if (wire::roce::parse(bytes, packet) != ParseError::none) throw Violation("a node sent a malformed packet");
    if (!wire::roce::icrc_valid(bytes)) {  // a packet damaged before an accelerator is passed unchanged
      if (host_of(from) < switches_) return;
      throw Violation("a host sent a packet with a wrong ICRC");
    }
    if (!wire::roce::shape_of(packet.bth.opcode).request) return;
    const bool raw = wire::netreduce::read_seal(packet.payload) == 0;
    const std::uint64_t connection = std::uint64_t{packet.bth.destination_qp} << 32 | packet.bth.psn;
    const std::uint64_t hosts = std::uint64_t{from.port} << 16 | to.port;
    std::uint64_t key = mix(connection ^ mix(hosts ^ (raw ? 1 : 0)));
    // A switch forwards headers, or whole packets while they pass unsummed.
    if (host_of(from) < switches_) key = mix(key ^ packet.payload.size());
    for (const auto& address : {packet.ip.source, packet.ip.destination}) {
      key = mix(key ^ load_le<std::uint64_t>(reinterpret_cast<const std::byte*>(address.data()) + 8));
    }
    const std::uint64_t content = crc32c(packet.payload) ^ std::uint64_t{packet.payload.size()} << 32;
    if (const auto [at, first] = sent_.emplace(key, content); !first && at->second != content) {
      throw Violation("packet " + std::to_string(packet.bth.psn) + " of a connection differs from what was sent before");
    }
  }
  void count_events(Tally&) const override {}

 private:
  const std::uint32_t switches_;  // hosts with lower IDs are switches
  std::unordered_map<std::uint64_t, std::uint64_t> sent_;
};

class Netreduce final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return session::netreduce_rules(); }

  void complete(session::JoinRequest& request, const JobPlan& plan, std::uint32_t life) const override {
    request.message_packets = plan.message_packets;
    for (const Endpoint& endpoint : request.endpoints) {
      netreduce::Member member;
      member.address = endpoint.address;
      member.send_qp = (life % 128) << 17 | std::uint32_t{endpoint.port} << 1;  // never reused
      member.receive_qp = member.send_qp | 1;
      member.send_psn = plan.first_psn;
      member.memory_address = std::uint64_t{life} << 32 | endpoint.port;
      member.memory_key = life * 7919 + endpoint.port;
      request.members.push_back(member);
    }
  }

  [[nodiscard]] std::optional<std::uint32_t> predecessor(std::uint32_t rank, std::uint32_t world_size) const override {
    return session::predecessor_of(rank, world_size);
  }

  [[nodiscard]] std::unique_ptr<AggregatorLane> aggregator_lane() const override { return std::make_unique<RootLane>(); }
  [[nodiscard]] std::unique_ptr<SwitchLane> switch_lane(const Scenario&) const override {
    return std::make_unique<RackLane>();
  }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario& scenario) const override {
    return std::make_unique<RingTap>(switch_host(scenario, static_cast<std::uint32_t>(scenario.parent_of_switch.size())));
  }
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }

  [[nodiscard]] std::unique_ptr<WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    const std::uint32_t of_site = plan.lane % plan.scenario->lanes;
    netreduce::RoceHostConfig config = session::host_config(plan.admission, plan.rank, of_site);
    config.worker.lane = plan.lane;
    config.worker.lanes = plan.lanes;
    const netreduce::Tree tree = session::tree_of(plan.admission.placement, plan.world_size);
    const std::uint32_t at = tree.switch_of_rank[plan.rank];
    config.accelerator =
        at == netreduce::at_root ? plan.aggregator : switch_endpoints(*plan.scenario, plan.admission.placement)(at, of_site);
    return std::make_unique<RingWorker>(config);
  }

  // In RoCE nothing but the source address distinguishes a stranger who knows the connection from its real end.
  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, false};
    Packet packet;
    if (wire::roce::parse(overheard, packet) != ParseError::none) return forgery;
    std::vector<std::byte> payload(packet.payload.begin(), packet.payload.end());
    packet.payload = payload;
    switch (random.below(4)) {
      case 0:  // another value with a correct checksum, from another source
        if (!payload.empty()) payload[random.below(payload.size())] ^= std::byte{1};
        break;
      case 1:  // another packet number, from another source
        packet.bth.psn = (packet.bth.psn + static_cast<std::uint32_t>(random.below(64))) & wire::roce::psn_mask;
        break;
      case 2:  // of an unknown connection
        forgery.spoofed = true;
        packet.bth.destination_qp ^= 0x800000;
        break;
      default:  // between other hosts
        forgery.spoofed = true;
        packet.ip.source[15] ^= 0x80;
        break;
    }
    wire::roce::write(forgery.bytes, packet);
    return forgery;
  }

  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override {
    Packet packet;
    if (const auto error = wire::roce::parse(datagram, packet); error != ParseError::none) {
      return std::string("malformed (") + wire::to_string(error) + "), " + std::to_string(datagram.size()) + " bytes";
    }
    const std::string to =
        ", queue pair " + std::to_string(packet.bth.destination_qp) + ", packet " + std::to_string(packet.bth.psn);
    if (packet.bth.opcode == Opcode::rc_acknowledge) {
      const std::uint8_t kind = packet.aeth.syndrome & wire::roce::Aeth::kind_mask;
      return (kind == 0 ? "ACK" : kind == wire::roce::Aeth::rnr_nak ? "RNR NAK" : "NAK") + to;
    }
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    std::string text = shape.first ? (shape.last ? "ONLY" : "FIRST") : shape.last ? "LAST" : "MIDDLE";
    text += to + (wire::netreduce::read_seal(packet.payload) == 0 ? ", gradient" : ", result") + " of " +
            std::to_string(packet.payload.size()) + " bytes";
    if (const auto header = wire::netreduce::read_header(wire::netreduce::netsum_layout, packet.payload);
        header && shape.first) {
      text += ", message " + std::to_string(header->message) + " of rank " + std::to_string(header->rank);
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Protocol> make_netreduce() {
  return std::make_unique<Netreduce>();
}

}  // namespace netsum::sim
