#include "protocol/baseline/simulated.h"

#include <unordered_map>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "protocol/baseline/packet.h"
#include "protocol/baseline/service.h"
#include "protocol/baseline/worker.h"
#include "sim/checked_jobs.h"
#include "sim/events.h"

namespace netsum::baseline {
namespace {

class Sums final : public sim::CheckedJobs<JobCounters> {
 public:
  explicit Sums(const service::Lanes& lanes) : CheckedJobs(lanes.size()), service_(lanes) {}

  [[nodiscard]] service::Service& service() override { return service_; }

  void check(std::span<const sim::LaneCounts> counts) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      check_packets(lane, outcomes(service_.at(lane).counters()), counts[lane].received, "the server's");
      for (const auto& [epoch, job] : jobs()) {
        if (job_counters(lane, epoch) == nullptr) continue;  // a lane that the job does not have
        const JobCounters& c = *job_counters(lane, epoch);
        if (job.agreed && c.dropped_early != 0)
          throw sim::Violation("a worker went on before the server's chunk was complete");
        if (job.agreed && c.mismatch != 0) throw sim::Violation("a mismatch was found in calls that agree");
      }
    }
  }

  void count_events(sim::Tally& tally) const override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      for_each_counter(total(lane),
                       [&](const CounterValue& c) { tally.events[std::string("server_") + c.name] += c.value; });
    }
  }

 private:
  [[nodiscard]] const JobCounters* job_counters(std::size_t lane, std::uint64_t epoch) const override {
    const auto found = service_.at(lane).jobs().find(epoch);
    return found == service_.at(lane).jobs().end() ? nullptr : &found->second.counters;
  }

  Service service_;
};

// Checks that a repeat has the content of the first transmission, and that all ranks get the same sum.
class SameAgain final : public sim::Tap {
 public:
  void on_send(const Endpoint& from, const Endpoint&, std::span<const std::byte> bytes) override {
    const auto packet = parse(bytes);
    if (!packet) throw sim::Violation("a node sent a malformed datagram");
    const bool result = packet->type == Type::result;
    if (!result && packet->type != Type::contribution) return;
    // Lanes number their chunks apart; a rank's lanes differ in ports, and so do a server's.
    const std::uint64_t sender = netsum::mix(std::uint64_t{from.port} << 8 | from.address[15]);
    const std::uint64_t key = netsum::mix(
        packet->job_epoch ^ netsum::mix(packet->sequence ^ netsum::mix(sender ^ (result ? 0 : packet->rank_epoch))));
    const std::uint64_t content = crc32c(packet->values) ^ std::uint64_t{packet->signature} << 32;
    if (const auto [at, first] = sent_.emplace(key, content); !first && at->second != content) {
      throw sim::Violation("a repeat of chunk " + std::to_string(packet->sequence) + " differs from what was sent before");
    }
  }
  void count_events(sim::Tally&) const override {}

 private:
  std::unordered_map<std::uint64_t, std::uint64_t> sent_;
};

}  // namespace

session::ProtocolRules Simulated::rules() const {
  return baseline::rules();
}

void Simulated::draw(sim::Scenario& scenario) const {
  for (sim::JobPlan& job : scenario.jobs) job.numbers = sim::Numbers::in_any_order;
}

std::unique_ptr<sim::CheckedService> Simulated::aggregator_service(const sim::Scenario&, const service::Lanes& lanes) const {
  return std::make_unique<Sums>(lanes);
}

std::unique_ptr<protocol::WorkerLane> Simulated::worker_lane(const sim::WorkerLanePlan& plan) const {
  return std::make_unique<Worker>(worker_config(plan.admission, plan.rank, plan.lane, plan.lanes, plan.aggregator));
}

std::unique_ptr<sim::Tap> Simulated::tap(const sim::Scenario&) const {
  return std::make_unique<SameAgain>();
}

sim::Forgery Simulated::forge(std::span<const std::byte> overheard, sim::Random& random) const {
  sim::Forgery forgery{{overheard.begin(), overheard.end()}, true};
  auto packet = parse(overheard);
  const std::uint64_t kind = packet ? random.below(5) : 0;
  if (kind == 0) {
    for (std::byte& byte : forgery.bytes) byte = static_cast<std::byte>(random.next());
    return forgery;
  }
  std::vector<std::byte> values(packet->values.begin(), packet->values.end());
  if (kind == 1) {  // right but for its source and its content
    forgery.spoofed = false;
    for (std::byte& byte : values) byte ^= std::byte{1};
  } else if (kind == 2) {
    packet->job_epoch ^= 1 + random.below(UINT32_MAX);
  } else if (kind == 3) {
    packet->rank_epoch ^= static_cast<std::uint32_t>(1 + random.below(UINT32_MAX));
  } else {
    packet->rank = static_cast<std::uint16_t>(100 + random.below(1000));
  }
  packet->values = values;
  write(*packet, forgery.bytes);
  return forgery;
}

std::string Simulated::describe(std::span<const std::byte> datagram) const {
  const auto packet = parse(datagram);
  if (!packet) return "malformed, " + std::to_string(datagram.size()) + " bytes";
  constexpr const char* names[] = {"?", "contribution", "result", "waiting", "mismatch", "unknown job"};
  return std::string(names[static_cast<std::size_t>(packet->type)]) + " of rank " + std::to_string(packet->rank) +
         ", chunk " + std::to_string(packet->sequence) + ", " + std::to_string(packet->elements) + " elements";
}

}  // namespace netsum::baseline
