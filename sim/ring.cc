#include "sim/ring.h"

#include <memory>
#include <set>
#include <string>

#include "sim/host.h"
#include "sim/ring_lane.h"

namespace netsum::sim {
namespace {

constexpr std::uint32_t most_ranks = 4096, most_elements = 2048;

session::ProtocolRules ring_rules() {
  session::ProtocolRules rules;
  rules.name = "ring";
  rules.version = 1;
  rules.max_world_size = most_ranks;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (elements > 0 && elements <= most_elements) return "";
    return "packets have 1 to " + std::to_string(most_elements) + " elements, not " + std::to_string(elements);
  };
  rules.check_placement = [](const session::Placement&) { return std::string(); };
  rules.cost = [](const session::Terms&) { return session::Cost{}; };
  return rules;
}

// Where ranks join. Its lanes get no packet.
class Meeting final : public CheckedService, private service::Service {
 public:
  explicit Meeting(std::size_t lanes) : lanes_(lanes) {}

  [[nodiscard]] service::Service& service() override { return *this; }
  void on_start(const session::StartJob& start, const JobPlan&) override { jobs_.insert(start.admission.job_epoch); }
  void on_stop(std::uint64_t epoch) override { jobs_.erase(epoch); }
  [[nodiscard]] bool needs_memory(const JobPlan&) const override { return false; }
  [[nodiscard]] std::size_t lanes_serving(std::uint64_t epoch) const override { return jobs_.contains(epoch) ? lanes_ : 0; }
  void check(std::span<const LaneCounts> lanes) const override {
    for (const LaneCounts& counts : lanes) {
      if (counts.received != 0) throw Violation("a ring's packet came to an aggregator");
    }
  }
  void count_events(Tally&) const override {}

 private:
  struct Job final : service::ServedJob {
    void stop() override {}
    void report(std::size_t, session::JobReport&) const override {}
  };

  void report(std::size_t, Counters&) const override {}
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return ring_rules(); }
  [[nodiscard]] std::unique_ptr<service::ServedJob> start(const session::StartJob&) override {
    return std::make_unique<Job>();
  }

  std::size_t lanes_;
  std::set<std::uint64_t> jobs_;
};

class Ring final : public Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override { return ring_rules(); }
  [[nodiscard]] bool measures() const override { return false; }
  [[nodiscard]] std::unique_ptr<CheckedService> aggregator_service(const Scenario&,
                                                                   const service::Lanes& lanes) const override {
    return std::make_unique<Meeting>(lanes.size());
  }
  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const WorkerLanePlan& plan) const override {
    const auto first = static_cast<HostId>(plan.scenario->aggregators + plan.scenario->parent_of_switch.size());
    HostId host = first;  // of rank 0
    for (const JobPlan* job = plan.scenario->jobs.data(); job != plan.plan; ++job) host += job->workers;
    const auto at = [&](std::uint32_t rank) {
      return endpoint_of(host + rank % plan.world_size, static_cast<std::uint16_t>(first_worker_port + plan.lane));
    };
    return std::make_unique<RingLane>(RingConfig{.job_epoch = plan.admission.job_epoch,
                                                 .rank = plan.rank,
                                                 .world_size = plan.world_size,
                                                 .packet_elements = plan.admission.packet_elements,
                                                 .window = plan.admission.slots,
                                                 .lane = plan.lane,
                                                 .lanes = plan.lanes,
                                                 .next = at(plan.rank + 1),
                                                 .previous = at(plan.rank + plan.world_size - 1)});
  }
  [[nodiscard]] std::vector<CounterValue> worker_counters() const override {
    std::vector<CounterValue> all;
    for_each_counter(RingLaneCounters{}, [&](const CounterValue& counter) { all.push_back(counter); });
    return all;
  }
  // Only clusters from seeds ask for the rest.
  [[nodiscard]] std::unique_ptr<PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }
  [[nodiscard]] std::unique_ptr<Tap> tap(const Scenario&) const override { return nullptr; }
  [[nodiscard]] Forgery forge(std::span<const std::byte>, Random&) const override { return {}; }
  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override {
    return "ring, " + std::to_string(datagram.size()) + " bytes";
  }
};

}  // namespace

std::unique_ptr<Protocol> make_ring() {
  return std::make_unique<Ring>();
}

}  // namespace netsum::sim
