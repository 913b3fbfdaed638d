// What the simulator needs of a protocol. Each implements it in a file of its own (sim/switchml.h); nothing else in sim/
// knows which protocol runs.
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

// A job that begins, on one lane.
struct LaneStart {
  const session::StartJob& start;
  const Scenario& scenario;
  const JobPlan& plan;
  std::size_t lane = 0;  // of the aggregator
  Endpoint aggregator;   // this very lane's
  // All ranks issue the same calls; then no worker ever goes on before its slot's chunk is complete.
  [[nodiscard]] bool agreed() const { return !plan.mismatch; }
};

// One data thread of an aggregator: any number of jobs.
class AggregatorLane {
 public:
  virtual ~AggregatorLane() = default;
  virtual void start_job(const LaneStart& start) = 0;
  virtual void stop_job(std::uint64_t epoch) = 0;
  // The job's switches receive elsewhere than they did, or are known only now.
  virtual void place(const LaneStart&, const session::SwitchEndpoint&) {}
  virtual void on_packets(std::span<const RxView> packets, Time now, Sink& sink) = 0;
  virtual void on_timer(Time now, Sink& sink) = 0;
  [[nodiscard]] virtual Time next_timeout() const = 0;

  // Throws Violation if its counters do not account for everything that it was handed, or if a job holds more than it may.
  virtual void check() const = 0;
  [[nodiscard]] virtual std::size_t jobs() const = 0;
  [[nodiscard]] virtual session::JobView look(std::uint64_t) const { return {}; }
  virtual void bypass(bool) {}  // packets pass as they are, while it is on (NetReduce)
  virtual void count_events(Tally& tally) const = 0;
};

// One data thread of a switch below the aggregators, in protocols that have such.
class SwitchLane {
 public:
  virtual ~SwitchLane() = default;
  // Idempotent. False: it has been told before, and has lost what the job cannot do without.
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
  std::string unsealed{};  // else: a result was no sum of all ranks (NetReduce)
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
  [[nodiscard]] virtual std::optional<session::Stall> oldest_stall() const = 0;  // `site` is the caller's to fill
  [[nodiscard]] virtual bool drained() const { return true; }  // nobody needs this rank any more for what has ended
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

// Measures the path to an aggregator before a rank joins, for a job whose window nobody has fixed.
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

// Sees every datagram as it is sent, before the network does anything to it.
class Tap {
 public:
  virtual ~Tap() = default;
  // Throws Violation, e.g. if a retransmission differs from the first transmission.
  virtual void on_send(const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) = 0;
  virtual void count_events(Tally& tally) const = 0;
};

// A datagram of a stranger who has overheard another and knows the format, the job and the checksum, but may not harm
// anyone.
struct Forgery {
  std::vector<std::byte> bytes;
  bool spoofed = false;  // seems to come from the sender of the one overheard
};

class Protocol {
 public:
  virtual ~Protocol() = default;
  [[nodiscard]] virtual session::ProtocolRules rules() const = 0;
  // What a rank's join says beside what is the same for all protocols; its endpoints are there. `life`: differs between all
  // attempts of all processes of a rank.
  // The rank whose connection brings a rank its results, where that is not the aggregator's own.
  [[nodiscard]] virtual std::optional<std::uint32_t> predecessor(std::uint32_t /*rank*/,
                                                                 std::uint32_t /*world_size*/) const {
    return std::nullopt;
  }
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
