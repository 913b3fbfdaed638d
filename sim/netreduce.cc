#include "sim/netreduce.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "jobs/netreduce_job.h"
#include "protocol/netreduce/tunnel.h"
#include "protocol/netreduce/worker_lane.h"
#include "seal/sealer.h"
#include "service/netreduce_service.h"
#include "sim/aggregator_host.h"
#include "sim/checked_jobs.h"
#include "sim/events.h"
#include "sim/forgeries.h"
#include "sim/labels.h"
#include "sim/private_jobs.h"
#include "sim/racks.h"
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

// Around the product's format: while it is on, packets go past the sums, on the same routes.
class Bypass final : public service::Format {
 public:
  explicit Bypass(std::unique_ptr<service::Format> sums) : sums_(std::move(sums)) {}

  [[nodiscard]] bool takes(std::uint8_t first) const override { return sums_->takes(first); }
  void on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink) override {
    on ? tunnel.on_packets(packets, now, sink) : sums_->on_packets(packets, congested, now, sink);
  }
  [[nodiscard]] std::uint64_t strangers() const override { return sums_->strangers() + tunnel.counters().strangers(); }

  void add(netreduce::TunnelRing ring) {
    std::vector<CacheLine> lines(netreduce::Accelerator::memory_bytes(ring.ring) / sizeof(CacheLine));
    ring.ring.layout.magic_bytes = 16;
    static_cast<void>(tunnel.add_ring(ring, std::as_writable_bytes(std::span(lines))));
    tunnel.accelerator().remove_ring(ring.ring.incarnation);
    tunnel.accelerator().forget(never);
  }

  bool on = false;
  netreduce::Tunnel tunnel;

 private:
  std::unique_ptr<service::Format> sums_;
};

// Rings at one switch of a tree, or at the only switch.
class NetreduceSums final : public CheckedJobs<RingCounters> {
 public:
  NetreduceSums(const Scenario& scenario, const service::Lanes& lanes)
      : CheckedJobs(lanes.size()),
        lanes_(around(lanes)),
        service_(of(lanes_),
                 [&scenario](const std::string& job) {
                   return scenario.plan_of(job).unordered ? netreduce::Order::arrival : netreduce::Order::ring;
                 }),
        scenario_(scenario) {}

  [[nodiscard]] service::Service& service() override { return service_; }
  [[nodiscard]] std::uint32_t slots_of(const session::SwitchMessage& message) const override {
    return jobs::read_ring(message, *service_.rules()).start.admission.slots;
  }
  void on_start(const session::StartJob& start, const JobPlan& plan) override {
    CheckedJobs::on_start(start, plan);
    const session::SwitchEndpoint below = switch_endpoints(scenario_, start.admission.placement);
    for (std::size_t lane = 0; lane < session::lanes_of(start); ++lane) {
      add_route(lane, jobs::tunnel_ring(start, lane, netreduce::at_root, below));
    }
  }
  void on_install(const session::SwitchMessage& message, const JobPlan& plan) override {
    CheckedJobs::on_install(message, plan);
    const jobs::TreeInstallation installation = jobs::read_ring(message, *service_.rules());
    for (std::size_t lane = 0; lane < installation.root.size(); ++lane)
      add_route(lane, jobs::tunnel_ring(installation, lane));
  }
  void on_stop(std::uint64_t epoch) override {
    CheckedJobs::on_stop(epoch);
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      bypasses_[lane]->tunnel.remove_ring(jobs::incarnation_of(epoch, lane));
    }
  }
  void bypass(bool on) override {
    for (Bypass* const bypass : bypasses_) bypass->on = on;
  }

  void check(std::span<const LaneCounts> counts) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      const netreduce::Tunnel& tunnel = service_.at(lane);
      if (outcomes(tunnel.counters()) + outcomes(bypasses_[lane]->tunnel.counters()) != counts[lane].received)
        throw Violation("the tunnel's counters do not add up to what it received");
      tunnel.accelerator().check();
      for (const auto& [epoch, job] : jobs()) {
        const RingCounters* const c = job_counters(lane, epoch);
        if (c == nullptr || !job.agreed) continue;
        if (c->dropped_early != 0) throw Violation("a host went on before its window allowed it");
        if (c->dropped_mismatch != 0 || c->dropped_shape != 0) throw Violation("a mismatch was found in calls that agree");
        if (c->dropped_misplaced != 0) throw Violation("a packet contradicts its message");
      }
    }
  }
  void check_idle() const override {
    if (!jobs().empty()) throw Violation("a switch has rings of a job that has ended");
  }

  void count_events(Tally& tally) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      // Hosts that go back, the order of the ring's stream, and connections that are learned are behind bumps.
      sim::count_events(tally, "ring_", wire::counter_values(total(lane)),
                        {"dropped_before_all_racks", "dropped_header", "dropped_early", "dropped_misplaced", "dropped_shape",
                         "early_results", "naks_answered", "naks_passed", "repeats_held", "repeats_ignored"});
      sim::count_events(tally, "tunnel_", wire::counter_values(service_.at(lane).counters()));
      tally.events["tunnel_bypassed"] += bypasses_[lane]->tunnel.counters().passed;
    }
  }

 private:
  [[nodiscard]] std::vector<std::unique_ptr<WrappingLane>> around(const service::Lanes& lanes) {
    std::vector<std::unique_ptr<WrappingLane>> wrapped;
    for (service::Lane* const lane : lanes) {
      wrapped.push_back(std::make_unique<WrappingLane>(*lane, [this](std::unique_ptr<service::Format> sums) {
        auto bypass = std::make_unique<Bypass>(std::move(sums));
        bypasses_.push_back(bypass.get());
        return bypass;
      }));
    }
    return wrapped;
  }
  [[nodiscard]] static service::Lanes of(const std::vector<std::unique_ptr<WrappingLane>>& wrapped) {
    service::Lanes lanes;
    for (const auto& lane : wrapped) lanes.push_back(lane.get());
    return lanes;
  }

  void add_route(std::size_t lane, const netreduce::TunnelRing& ring) {
    if (const std::string error = netreduce::check(ring.ring); !error.empty())
      throw Violation("a ring that cannot be: " + error);
    bypasses_[lane]->add(ring);
  }
  // Null also until the job's switches are known.
  [[nodiscard]] const RingCounters* job_counters(std::size_t lane, std::uint64_t epoch) const override {
    return service_.at(lane).accelerator().ring_counters(jobs::incarnation_of(epoch, lane));
  }

  std::vector<Bypass*> bypasses_;  // by lane; the lanes own them
  const std::vector<std::unique_ptr<WrappingLane>> lanes_;
  service::NetReduceService service_;
  const Scenario& scenario_;
};

// Checks that a repeated gradient packet has the same content, and that a result is the same for every receiver.
class RingTap final : public Tap {
 public:
  RingTap(std::uint32_t switches, PacketSecurity security) : switches_(switches), security_(security) {}
  void on_send(const Endpoint& from, const Endpoint& to, std::span<const std::byte> sent) override {
    if (security_ == PacketSecurity::encrypt) return;
    const auto bytes = sent.first(sent.size() - seal::trailer_bytes(security_));
    Packet packet;
    if (wire::roce::parse(bytes, packet, wire::roce::max_tunnel_mtu) != ParseError::none)
      throw Violation("a node sent a malformed packet");
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
  const PacketSecurity security_;
  std::unordered_map<std::uint64_t, std::uint64_t> sent_;
};

class Netreduce final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return jobs::netreduce_rules(); }
  [[nodiscard]] bool measures() const override { return false; }
  [[nodiscard]] bool names_missing() const override { return false; }  // the rank before it waits for its answers
  [[nodiscard]] bool can_bypass() const override { return true; }
  void draw(Scenario& scenario) const override {
    draw_rings(scenario, true);
    draw_racks(scenario);
    draw_private(scenario, false);
    scenario.security = draw_security(scenario.seed);
  }

  void complete(session::JoinRequest& request, const Scenario& scenario, const JobPlan& plan,
                std::uint32_t life) const override {
    jobs::RingAsk ask{plan.message_packets, {}, privacy_of(scenario, plan, request.rank, life)};
    for (const Endpoint& endpoint : request.endpoints) {
      netreduce::Member member;
      member.address = endpoint.address;
      member.send_qp = (life % 128) << 17 | std::uint32_t{endpoint.port} << 1;  // never reused
      member.receive_qp = member.send_qp | 1;
      member.send_psn = plan.first_psn;
      member.memory_address = std::uint64_t{life} << 32 | endpoint.port;
      member.memory_key = life * 7919 + endpoint.port;
      ask.members.push_back(member);
    }
    request.own = jobs::own_part(ask);
  }
  [[nodiscard]] std::uint32_t packets_of_slot(const session::Admission& admission) const override {
    return jobs::ring_grant(admission).message_packets;
  }

  [[nodiscard]] std::optional<std::uint32_t> predecessor(std::uint32_t rank, std::uint32_t world_size) const override {
    return jobs::predecessor_of(rank, world_size);
  }

  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario& scenario,
                                                                   const service::Lanes& lanes) const override {
    return std::make_unique<NetreduceSums>(scenario, lanes);
  }
  [[nodiscard]] std::unique_ptr<CheckedService> switch_service(const Scenario& scenario, std::uint32_t,
                                                               const service::Lanes& lanes) const override {
    return std::make_unique<NetreduceSums>(scenario, lanes);
  }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario& scenario) const override {
    return std::make_unique<RingTap>(switch_host(scenario, static_cast<std::uint32_t>(scenario.parent_of_switch.size())),
                                     scenario.security);
  }
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }

  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    const std::uint32_t of_site = plan.lane % plan.scenario->lanes;
    netreduce::RoceHostConfig config =
        jobs::host_config(plan.admission, jobs::ring_grant(plan.admission), plan.rank, of_site);
    config.worker.lane = plan.lane;
    config.worker.lanes = plan.lanes;
    config.worker.pads = pads_of(plan, jobs::public_keys(jobs::ring_grant(plan.admission)));
    config.congestion_control = plan.plan->congestion_control;
    const netreduce::Tree tree = jobs::tree_of(plan.admission.placement, plan.world_size);
    const std::uint32_t at = tree.switch_of_rank[plan.rank];
    config.accelerator =
        at == netreduce::at_root ? plan.aggregator : switch_endpoints(*plan.scenario, plan.admission.placement)(at, of_site);
    return netreduce::make_worker_lane(config, jobs::ring_keys(plan.admission, of_site));
  }

  [[nodiscard]] std::vector<CounterValue> worker_counters() const override {
    std::vector<CounterValue> counters = wire::counter_values(netreduce::RoceHostCounters{});
    for_each_counter(roce::QueuePairCounters{}, [&](const CounterValue& counter) { counters.push_back(counter); });
    return counters;
  }

  // In RoCE nothing but the source address distinguishes a stranger who knows the connection from its real end.
  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, false};
    Packet packet;
    if (wire::roce::parse(overheard, packet, wire::roce::max_tunnel_mtu) != ParseError::none) {
      forgery.spoofed = true;
      forge_sealed(forgery.bytes, PacketSecurity::tag, 1, 0, random);
      return forgery;
    }
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
    if (const auto error = wire::roce::parse(datagram, packet, wire::roce::max_tunnel_mtu); error != ParseError::none) {
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

void draw_rings(Scenario& scenario, bool tunnelled) {
  std::uint32_t need = 0;
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    Random random(derive(scenario.seed, Label::of_ring + index));
    job.numbers = Numbers::in_order;
    job.packet_elements = std::bit_floor(job.packet_elements);  // a path MTU
    job.message_packets = static_cast<std::uint32_t>(random.between(1, 6));
    const std::uint64_t psns = std::uint64_t{1} << 24;
    job.first_psn = static_cast<std::uint32_t>(random.chance(0.5) ? psns - 1 - random.below(500) : random.below(psns));
    job.unordered = random.chance(0.2);
    if (random.chance(0.1) && tunnelled) {
      job.packet_elements = wire::roce::max_mtu / 4 * static_cast<std::uint32_t>(random.between(2, 4));
    }
    // Ranks repair a loss one after the other, in ring order. With one message in flight, and several racks between lossy
    // links, each takes a second or more.
    if (!job.impatient) job.operation_deadline *= 2 * std::max(4U, job.workers);
    need += job.slots * job.message_packets * job.workers * job.units() * scenario.lanes;
  }
  scenario.switch_slots = scenario.scarce ? need - 1 : need;
}

std::unique_ptr<Protocol> make_netreduce() {
  return std::make_unique<Netreduce>();
}

}  // namespace netsum::sim
