#include "sim/bump.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "jobs/netreduce_job.h"
#include "netsum/error.h"
#include "protocol/netreduce/worker_lane.h"
#include "service/netreduce_service.h"
#include "sim/aggregator_host.h"
#include "sim/bump_wire.h"
#include "sim/events.h"
#include "sim/frames.h"
#include "sim/host.h"
#include "sim/labels.h"
#include "sim/netreduce.h"
#include "sim/nic.h"
#include "sim/racks.h"
#include "wire/counter_values.h"

namespace netsum::sim {
namespace {

using netreduce::RingConfig;
using netreduce::RingCounters;

constexpr wire::ethernet::Address stranger_mac = {2, 0xfe, 0, 0, 0, 1};
constexpr std::uint32_t nobodys_qp = 0x2000;  // rings' have ports of hosts in them

// What outlives the bump's processes, and what no packet tells: operators give hosts their ring.
struct World {
  std::map<std::uint32_t, StateFile> files;  // by bump
  ForeignFrames foreign;
  std::map<std::string, std::uint64_t> incarnations;  // of learned jobs' rings
  std::uint64_t processes = 0;
};

// The bump where ranks join, in place of one below.
constexpr std::uint32_t root = session::Placement::at_server;

// As other bumps, and hosts at it, see it: their cables to it, and where its datagrams come from.
Endpoint bump_at(const Scenario& scenario, std::uint32_t bump) {
  return endpoint_of(bump == root ? 0 : switch_host(scenario, bump), aggregator_port);
}

std::uint32_t bump_of(const JobPlan& job, std::uint32_t rank) {
  return job.switch_of_rank.empty() ? root : job.switch_of_rank[rank];
}

HostId first_rank_of(const Scenario& scenario) {
  return switch_host(scenario, static_cast<std::uint32_t>(scenario.parent_of_switch.size()));
}

HostId stranger_of(const Scenario& scenario) {
  HostId hosts = first_rank_of(scenario);
  for (const JobPlan& job : scenario.jobs) hosts += job.workers;
  return hosts;
}

bool is_forged(const wire::roce::Packet& packet) {
  const netreduce::HostAddress& from = packet.ip.source;
  return packet.bth.destination_qp == nobodys_qp || endpoint_of(host_of({from, 0, 0}), 0).address != from;
}

template <class Each>
void for_each_rank(const Scenario& scenario, const Each& each) {
  HostId host = first_rank_of(scenario);
  for (std::uint32_t job = 0; job < scenario.jobs.size(); ++job) {
    for (std::uint32_t rank = 0; rank < scenario.jobs[job].workers; ++rank) each(job, rank, host++);
  }
}

// A cable for each host in the bump's rack, and for each port to which it may move; for each bump below, and the one above;
// one for the stranger.
netreduce::BridgeConfig bridge_of(const Scenario& scenario, std::uint32_t bump) {
  netreduce::BridgeConfig bridge;
  bridge.addresses = 1024;
  bridge.max_age = scenario.seed % 2 == 0 ? Duration(std::chrono::minutes(5)) : Duration(std::chrono::seconds(1));
  for_each_rank(scenario, [&](std::uint32_t job, std::uint32_t rank, HostId host) {
    if (bump_of(scenario.jobs[job], rank) != bump) return;
    const auto moves = std::count_if(scenario.node_faults.begin(), scenario.node_faults.end(), [&](const NodeFault& fault) {
      return fault.kind == Fault::crash && fault.job == job && fault.rank == rank && !fault.same_ports;
    });
    for (int port = 0; port <= moves; ++port) {
      bridge.ports.push_back(endpoint_of(host, static_cast<std::uint16_t>(first_worker_port + port * ports_per_life)));
    }
  });
  for (std::uint32_t below = 0; below < scenario.parent_of_switch.size(); ++below) {
    if (scenario.parent_of_switch[below] == bump) bridge.ports.push_back(bump_at(scenario, below));
  }
  if (bump != root) bridge.ports.push_back(bump_at(scenario, scenario.parent_of_switch[bump]));
  bridge.ports.push_back(endpoint_of(stranger_of(scenario), stranger_port));
  return bridge;
}

netreduce::LearningConfig learning_of(const Scenario& scenario) {
  netreduce::LearningConfig learning;
  for_each_rank(scenario, [&](std::uint32_t job, std::uint32_t, HostId host) {
    if (scenario.jobs[job].learned) learning.hosts.push_back(endpoint_of(host, 0).address);
  });
  return learning;
}

// As an operator describes it.
RingConfig learned_ring(const Scenario& scenario, std::uint32_t job, std::uint64_t incarnation) {
  const JobPlan& plan = scenario.jobs[job];
  RingConfig ring;
  ring.incarnation = incarnation;
  ring.ring = 1 + job;
  ring.members = plan.workers;
  ring.window = plan.slots;
  ring.message_packets = plan.message_packets;
  ring.mtu = plan.packet_elements * 4;
  ring.order = plan.unordered ? netreduce::Order::arrival : netreduce::Order::ring;
  if (plan.switch_of_rank.empty()) return ring;
  ring.racks.resize(scenario.parent_of_switch.size());
  for (const std::uint32_t rack : plan.switch_of_rank) ++ring.racks[rack];
  return ring;
}

// Whether each rack's bump is next to the root, and the job's ranks follow each other from rack to rack.
bool is_learnable(const Scenario& scenario, const JobPlan& job) {
  const auto& racks = job.switch_of_rank;
  return std::all_of(scenario.parent_of_switch.begin(), scenario.parent_of_switch.end(),
                     [](std::uint32_t parent) { return parent == root; }) &&
         std::find(racks.begin(), racks.end(), root) == racks.end() && std::is_sorted(racks.begin(), racks.end());
}

// The product's service, but for jobs whose rings are learned: in the binaries they have no job.
class BumpService final : public service::Service {
 public:
  BumpService(service::Lane& lane, BumpWire& wire, const Scenario& scenario)
      : scenario_(scenario),
        named_(lane, {wire.tunnel(), true, {}, [&wire](const RingConfig& ring) { wire.record(ring); }},
               [&scenario](const std::string& job) {
                 return scenario.plan_of(job).unordered ? netreduce::Order::arrival : netreduce::Order::ring;
               }) {}

  void report(std::size_t, Counters&) const override {}
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return named_.rules(); }
  [[nodiscard]] std::unique_ptr<service::ServedJob> start(const session::StartJob& start) override {
    if (!scenario_.plan_of(start.job).learned) return named_.start(start);
    return std::make_unique<LearnedJob>(serving_, start.admission.job_epoch);
  }
  [[nodiscard]] session::SwitchMessage describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                const session::SwitchLanes& switches,
                                                std::span<const Endpoint> own) const override {
    return named_.describe(start, switch_id, again, switches, own);
  }
  [[nodiscard]] std::string takes() const override { return named_.takes(); }
  [[nodiscard]] service::InstalledJob install(const session::SwitchMessage& message, service::ServedJob* former,
                                              const Prove& prove) override {
    if (!scenario_.plan_of(message.job).learned) return named_.install(message, former, prove);
    const jobs::TreeInstallation installation = jobs::read_ring(message, *rules());
    service::InstalledJob installed = service::installed_job(installation, {});
    if (former == nullptr) {
      jobs::refuse_again(installation);
      installed.job = std::make_unique<LearnedJob>(serving_, installation.start.admission.job_epoch);
    }
    return installed;
  }
  [[nodiscard]] bool serves_learned(std::uint64_t epoch) const { return serving_.contains(epoch); }

 private:
  struct LearnedJob final : service::ServedJob {
    LearnedJob(std::set<std::uint64_t>& in, std::uint64_t number) : serving(in), epoch(number) { serving.insert(epoch); }
    ~LearnedJob() override { stop(); }
    void stop() override { serving.erase(epoch); }
    void report(std::size_t, session::JobReport&) const override {}

    std::set<std::uint64_t>& serving;
    const std::uint64_t epoch;
  };

  const Scenario& scenario_;
  service::NetReduceService named_;
  std::set<std::uint64_t> serving_;  // epochs of learned jobs
};

class CheckedBump final : public CheckedService {
 public:
  CheckedBump(const Scenario& scenario, std::uint32_t bump, const service::Lanes& lanes, World& world)
      : file_(world.files[bump]),
        losses_(derive(derive(scenario.seed, Label::of_bump), ++world.processes)),
        wire_(*service::serve<BumpWire>(*lanes.front(), bridge_of(scenario, bump), learning_of(scenario), file_,
                                        std::chrono::microseconds(100U << losses_.below(12)), world.foreign)),
        service_(*lanes.front(), wire_, scenario) {
    for (std::uint32_t job = 0; job < scenario.jobs.size(); ++job) {
      if (!scenario.jobs[job].learned) continue;
      const RingConfig ring = learned_ring(scenario, job, losses_.next());
      if (netreduce::spans_racks(ring)) {
        add_in_racks(scenario, bump, ring, job, lanes, world);
        continue;
      }
      if (!ring.racks.empty() && (bump == root || ring.racks[bump] == 0)) continue;
      world.incarnations[scenario.jobs[job].name] = ring.incarnation;
      add_learned(ring, lanes);
    }
  }
  ~CheckedBump() override { file_.lose(losses_); }

  [[nodiscard]] service::Service& service() override { return service_; }
  void on_start(const session::StartJob& start, const JobPlan& plan) override {
    if (!plan.learned && !plan.mismatch) agreed_.insert(start.admission.job_epoch);
  }
  void on_install(const session::SwitchMessage& message, const JobPlan& plan) override {
    if (!plan.mismatch) agreed_.insert(message.job_epoch);
  }
  void on_stop(std::uint64_t epoch) override {
    if (const RingCounters* const counters = of_job(epoch)) add(ended_, *counters);
    agreed_.erase(epoch);
  }
  [[nodiscard]] std::size_t lanes_serving(std::uint64_t epoch) const override {
    return of_job(epoch) != nullptr || service_.serves_learned(epoch) ? 1 : 0;
  }
  [[nodiscard]] bool needs_memory(const JobPlan& plan) const override { return !plan.learned; }
  void bypass(bool on) override { wire_.bypass(on); }

  void check(std::span<const LaneCounts> counts) const override {
    wire_.check(counts.front().received);
    for (const std::uint64_t epoch : agreed_) {
      const RingCounters* const counters = of_job(epoch);
      if (counters == nullptr) continue;  // the other bumps are not known yet
      const RingCounters& c = *counters;
      if (c.dropped_early != 0) throw Violation("a host went on before its window allowed it");
      if (c.dropped_mismatch != 0 || c.dropped_shape != 0) throw Violation("a mismatch was found in calls that agree");
      if (c.dropped_misplaced != 0) throw Violation("a packet contradicts its message");
    }
  }
  void count_events(Tally& tally) const override {
    RingCounters total = ended_;
    for (const std::uint64_t epoch : agreed_) {
      if (const RingCounters* const counters = of_job(epoch)) add(total, *counters);
    }
    for (const std::uint64_t incarnation : learned_) {
      if (const RingCounters* const counters = wire_.accelerator().ring_counters(incarnation)) add(total, *counters);
    }
    sim::count_events(tally, "ring_", wire::counter_values(total),
                      {"dropped_header", "dropped_early", "dropped_misplaced", "dropped_shape", "packets_asked_of_senders",
                       "sums_asked_for", "repeat_requests"});
    wire_.count_events(tally);
  }

 private:
  void add_learned(const RingConfig& ring, const service::Lanes& lanes) {
    learned_.push_back(ring.incarnation);
    memory_.push_back(lanes.front()->allocate(netreduce::Accelerator::memory_bytes(ring)));
    if (!wire_.accelerator().add_ring(ring, memory_.back()->bytes())) throw Violation("a ring that cannot be");
  }

  // As an operator describes it to the root and to its racks' bumps.
  void add_in_racks(const Scenario& scenario, std::uint32_t bump, const RingConfig& ring, std::uint32_t job,
                    const service::Lanes& lanes, World& world) {
    std::vector<HostId> hosts;
    for_each_rank(scenario, [&](std::uint32_t of, std::uint32_t, HostId host) {
      if (of == job) hosts.push_back(host);
    });
    const JobPlan& plan = scenario.jobs[job];
    for (std::uint32_t rank = 0; rank < plan.workers; ++rank) {
      const std::uint32_t next = (rank + 1) % plan.workers;
      if (bump_of(plan, rank) != bump_of(plan, next))
        wire_.expect_crossing(endpoint_of(hosts[rank], 0).address, endpoint_of(hosts[next], 0).address);
    }
    if (bump == root) {
      std::vector<Endpoint> bumps;
      for (std::uint32_t rack = 0; rack < ring.racks.size(); ++rack) bumps.push_back(bump_at(scenario, rack));
      memory_.push_back(
          lanes.front()->allocate(netreduce::Accelerator::memory_bytes(netreduce::root_ring(ring, bumps, 0).ring)));
      world.incarnations[plan.name] = ring.incarnation;
      learned_.push_back(ring.incarnation);
      wire_.learned_racks().add(
          ring, netreduce::LearnedRacks::Root{bumps, memory_.back()->bytes(), [this] { return losses_.next(); }});
      return;
    }
    const Endpoint above = bump_at(scenario, root);
    if (const auto part = netreduce::rack_ring(ring, bump, above)) {
      add_learned(*part, lanes);
      wire_.learned_racks().add(ring, netreduce::LearnedRacks::Rack{bump, above, losses_.next()});
    }
  }

  [[nodiscard]] const RingCounters* of_job(std::uint64_t epoch) const {
    return wire_.accelerator().ring_counters(jobs::incarnation_of(epoch, 0));
  }

  StateFile& file_;
  Random losses_;
  BumpWire& wire_;  // the lane's
  BumpService service_;
  std::vector<std::uint64_t> learned_;  // incarnations
  std::vector<std::unique_ptr<service::Memory>> memory_;
  std::set<std::uint64_t> agreed_;  // epochs of jobs that named their rings, and whose ranks issue the same calls
  RingCounters ended_;
};

// Looks at rings' packets as the other tap does, which knows no frames.
class BumpTap final : public Tap {
 public:
  explicit BumpTap(std::unique_ptr<Tap> rings) : rings_(std::move(rings)) {}
  void on_send(const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) override {
    const auto packet = ring_packet(bytes);
    if (packet && !is_forged(packet->packet)) rings_->on_send(from, to, packet->ip);
  }
  void count_events(Tally& tally) const override { rings_->count_events(tally); }

 private:
  std::unique_ptr<Tap> rings_;
};

class Bump final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return jobs::bump_rules(true); }
  [[nodiscard]] bool measures() const override { return false; }
  [[nodiscard]] bool names_missing() const override { return false; }  // the rank before it waits for its answers
  [[nodiscard]] bool losses_hold_up_others() const override { return true; }
  [[nodiscard]] bool sends_frames() const override { return true; }
  [[nodiscard]] bool can_bypass() const override { return true; }

  void draw(Scenario& scenario) const override {
    scenario.aggregators = scenario.lanes = 1;
    scenario.spare_lanes = 0;
    for (JobPlan& job : scenario.jobs) {
      job.workers = std::max(job.workers, 2U);  // neighbours have ports of their own
      job.survivors = job.standbys = 0;
      job.straggler_deadline = {};
    }
    draw_rings(scenario, false);
    draw_racks(scenario);
    Random random(derive(scenario.seed, Label::of_bump));
    // Without order a connection cannot be learned (docs/protocol-netreduce.md).
    scenario.links.in_order = random.chance(0.6);
    if (!scenario.links.in_order) return;
    scenario.links.late = 0;
    for (JobPlan& job : scenario.jobs) job.learned = random.chance(0.7) && is_learnable(scenario, job);
  }

  [[nodiscard]] std::optional<std::uint32_t> predecessor(std::uint32_t rank, std::uint32_t world_size) const override {
    return rings_->predecessor(rank, world_size);
  }
  void complete(session::JoinRequest& request, const Scenario& scenario, const JobPlan& plan,
                std::uint32_t life) const override {
    rings_->complete(request, scenario, plan, life);
  }
  [[nodiscard]] std::uint32_t packets_of_slot(const session::Admission& admission) const override {
    return rings_->packets_of_slot(admission);
  }
  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario& scenario,
                                                                   const service::Lanes& lanes) const override {
    return std::make_unique<CheckedBump>(scenario, root, lanes, *world_);
  }
  [[nodiscard]] std::unique_ptr<CheckedService> switch_service(const Scenario& scenario, std::uint32_t switch_id,
                                                               const service::Lanes& lanes) const override {
    return std::make_unique<CheckedBump>(scenario, switch_id, lanes, *world_);
  }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario& scenario) const override {
    return std::make_unique<BumpTap>(rings_->tap(scenario));
  }
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }

  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    netreduce::RoceHostConfig config =
        jobs::host_config(plan.admission, jobs::ring_grant(plan.admission), plan.rank, plan.lane);
    config.worker.lanes = plan.lanes;
    config.congestion_control = plan.plan->congestion_control;
    config.accelerator = bump_at(*plan.scenario, bump_of(*plan.plan, plan.rank));
    config.selective = false;  // as RDMA hardware
    if (plan.plan->learned) {
      config.buffers = 0;  // the operator's ring has no more than the paper's
      config.worker.incarnation = world_->incarnations.at(plan.plan->name);
      config.worker.ring = static_cast<std::uint32_t>(1 + (plan.plan - plan.scenario->jobs.data()));
    }
    const LinkFaults& links = plan.scenario->links;
    const bool damage = links.corrupt > 0 || links.truncate > 0 || links.forge > 0;
    const std::uint64_t seed = derive(plan.scenario->seed, plan.admission.rank_epoch);
    return behind_nic(netreduce::make_worker_lane(config), config, world_->foreign, damage, seed);
  }

  // From a port of its own, a stranger knows what it has overheard, and has its own addresses. A host's cable is the host's.
  [[nodiscard]] Forgery forge(std::span<const std::byte> overheard, Random& random) const override {
    Forgery forgery{{overheard.begin(), overheard.end()}, false};
    if (is_datagram(overheard)) return forgery;  // between bumps: it comes from elsewhere
    const auto heard = ring_packet(overheard);
    if (!heard || is_forged(heard->packet)) {
      set_source(forgery.bytes, stranger_mac);
      return forgery;
    }
    wire::roce::Packet packet = heard->packet;
    std::vector<std::byte> payload(packet.payload.begin(), packet.payload.end());
    packet.payload = payload;
    const auto kind = random.below(4);
    const std::uint64_t which = random.next();
    if (kind == 0 && !payload.empty()) payload[which % payload.size()] ^= std::byte{1};
    if (kind == 1) packet.bth.psn = (packet.bth.psn + static_cast<std::uint32_t>(which % 64)) & wire::roce::psn_mask;
    if (kind == 2 && !heard->shape.first) {  // of an unknown connection, in the name of its host
      forgery.spoofed = true;
      packet.bth.destination_qp = nobodys_qp;
    } else {
      packet.ip.source[13] ^= 0x80;  // no host's
    }
    const auto at = static_cast<std::size_t>(heard->ip.data() - overheard.data());
    wire::roce::write(std::span(forgery.bytes).subspan(at, heard->ip.size()), packet);
    if (!forgery.spoofed) set_source(forgery.bytes, stranger_mac);
    return forgery;
  }

  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override {
    const auto packet = ring_packet(datagram);
    return packet ? rings_->describe(packet->ip) : "another frame, " + std::to_string(datagram.size()) + " bytes";
  }

 private:
  const std::unique_ptr<Protocol> rings_ = make_netreduce();
  const std::unique_ptr<World> world_ = std::make_unique<World>();
};

}  // namespace

std::unique_ptr<Protocol> make_bump() {
  return std::make_unique<Bump>();
}

}  // namespace netsum::sim
