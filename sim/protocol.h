// A protocol's interface to the simulator. Each protocol implements it in a separate file (sim/switchml.h); nothing else in
// sim/ knows which protocol runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "session/job_view.h"
#include "session/registry.h"
#include "session/supervisor.h"
#include "sim/faults.h"
#include "sim/host.h"
#include "sim/random.h"
#include "sim/scenario.h"
#include "stream/operation.h"

namespace netsum::sim {

// The start of a job on one lane.
struct LaneStart {
  const session::StartJob& start;
  const Scenario& scenario;
  const JobPlan& plan;
  std::size_t lane = 0;  // of the aggregator
  Endpoint aggregator;   // of this lane
  // All ranks issue the same calls; then no worker ever advances before its slot's chunk is complete.
  [[nodiscard]] bool agreed() const { return !plan.mismatch; }
};

// One data thread of an aggregator: any number of jobs.
class AggregatorLane {
 public:
  virtual ~AggregatorLane() = default;
  virtual void start_job(const LaneStart& start) = 0;
  virtual void stop_job(std::uint64_t epoch) = 0;
  // The job's switches have new endpoints, or first become known.
  virtual void place(const LaneStart&, const session::SwitchEndpoint&) {}
  virtual void on_packets(std::span<const RxView> packets, Time now, Sink& sink) = 0;
  virtual void on_timer(Time now, Sink& sink) = 0;
  [[nodiscard]] virtual Time next_timeout() const = 0;

  // Throws Violation if the counters do not account for all received packets, or if a job exceeds its memory.
  virtual void check() const = 0;
  [[nodiscard]] virtual std::size_t jobs() const = 0;
  [[nodiscard]] virtual session::JobView look(std::uint64_t) const { return {}; }
  virtual void bypass(bool) {}  // while on, packets pass unchanged (NetReduce)
  virtual void count_events(Tally& tally) const = 0;
};

// One data thread of a switch below the aggregators, for protocols with switches.
class SwitchLane {
 public:
  virtual ~SwitchLane() = default;
  // Idempotent. False: the job was installed before, and state that it depends on has been lost.
  [[nodiscard]] virtual bool install(const LaneStart& start, const InstallCall& call) = 0;
  virtual void remove(std::uint64_t epoch) = 0;
  virtual void on_packets(std::span<const RxView> packets, Time now, Sink& sink) = 0;
  virtual void check() const = 0;       // as AggregatorLane's
  virtual void check_idle() const = 0;  // when no job is left
  [[nodiscard]] virtual session::JobView look(std::uint64_t) const { return {}; }
  virtual void bypass(bool) {}
  virtual void count_events(Tally& tally) const = 0;
};

struct LaneFailure {
  bool mismatch = false;  // else: the aggregator does not know the job
  std::uint64_t operation = 0;
  std::uint32_t first_rank = 0, second_rank = 0;
  std::string unsealed{};  // not empty: a result was not the sum of all ranks (NetReduce)
};

// One rank's share of one aggregator lane.
class WorkerLane {
 public:
  virtual ~WorkerLane() = default;
  [[nodiscard]] virtual bool submit(const stream::Operation& operation, Time now, Sink& sink) = 0;
  virtual void on_packets(std::span<const RxView> packets, Time now, Sink& sink) = 0;
  virtual void on_timer(Time now, Sink& sink) = 0;
  [[nodiscard]] virtual Time next_timeout() const = 0;
  [[nodiscard]] virtual std::vector<std::uint64_t> take_completed() = 0;
  [[nodiscard]] virtual std::optional<LaneFailure> failure() const = 0;
  [[nodiscard]] virtual std::optional<session::Stall> oldest_stall() const = 0;  // `site` is filled by the caller
  [[nodiscard]] virtual bool drained() const { return true; }  // no other rank needs this one for completed operations
  virtual void check() const = 0;
  virtual void count_events(Tally& tally) const = 0;
};

struct WorkerLanePlan {
  session::Admission admission;
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t lane = 0, lanes = 1;  // over all aggregators
  Endpoint aggregator;
  const Scenario* scenario = nullptr;
  const JobPlan* plan = nullptr;
};

// Measures the path to an aggregator before a rank joins, for a job without a configured window.
class PathProbe {
 public:
  virtual ~PathProbe() = default;
  virtual void start(Time now, Sink& sink) = 0;
  virtual void on_packets(std::span<const RxView> packets, Time now, Sink& sink) = 0;
  virtual void on_timer(Time now, Sink& sink) = 0;
  [[nodiscard]] virtual Time next_timeout() const = 0;
  [[nodiscard]] virtual bool done() const = 0;
  [[nodiscard]] virtual std::optional<std::uint32_t> slots() const = 0;  // none: no answer
};

// Observes every datagram as it is sent, before the network processes it.
class Tap {
 public:
  virtual ~Tap() = default;
  // Throws Violation, e.g. if a retransmission differs from the first transmission.
  virtual void on_send(const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) = 0;
  virtual void count_events(Tally& tally) const = 0;
};

// A datagram from a stranger who has overheard another one and knows the format, the job and the checksum, but must not be
// able to do harm.
struct Forgery {
  std::vector<std::byte> bytes;
  bool spoofed = false;  // its source is the sender of the overheard one
};

class Protocol {
 public:
  virtual ~Protocol() = default;
  [[nodiscard]] virtual session::ProtocolRules rules() const = 0;
  // The rank whose connection brings a rank its results, if that is not the aggregator's own.
  [[nodiscard]] virtual std::optional<std::uint32_t> predecessor(std::uint32_t /*rank*/,
                                                                 std::uint32_t /*world_size*/) const {
    return std::nullopt;
  }
  // Adds the protocol's fields to a rank's join, whose endpoints are set. `life`: differs between all attempts of all
  // processes of a rank.
  virtual void complete(session::JoinRequest&, const JobPlan&, std::uint32_t /*life*/) const {}
  [[nodiscard]] virtual std::unique_ptr<AggregatorLane> aggregator_lane() const = 0;
  [[nodiscard]] virtual std::unique_ptr<SwitchLane> switch_lane(const Scenario&) const { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<WorkerLane> worker_lane(const WorkerLanePlan& plan) const = 0;
  [[nodiscard]] virtual std::unique_ptr<PathProbe> path_probe(const Endpoint& aggregator,
                                                              std::uint32_t packet_elements) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Tap> tap(const Scenario& scenario) const = 0;
  [[nodiscard]] virtual Forgery forge(std::span<const std::byte> overheard, Random& random) const = 0;
  [[nodiscard]] virtual std::string describe(std::span<const std::byte> datagram) const = 0;
};

// Null if the name is unknown.
[[nodiscard]] std::unique_ptr<Protocol> make_protocol(const std::string& name);

}  // namespace netsum::sim
