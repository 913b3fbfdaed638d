// A host that runs one rank of one job: it joins every aggregator, issues the job's calls, sends heartbeats, and ends with
// results or an error; after an error it tries again, like a launcher.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "session/supervisor.h"
#include "sim/aggregator_host.h"
#include "sim/host.h"
#include "sim/protocol.h"
#include "sim/random.h"
#include "sim/scenario.h"
#include "stream/operation_log.h"

namespace netsum::sim {

// Observer of the ranks' results and errors.
class Witness {
 public:
  // `epoch`: of the job, at its first aggregator. `process`: of the rank, counted from 0.
  virtual void began(std::uint32_t job, std::uint32_t rank, std::uint64_t epoch, std::uint32_t process) = 0;
  virtual void delivered(std::uint32_t job, std::uint32_t rank, const stream::Operation& call,
                         std::span<const std::byte> result, std::uint64_t epoch) = 0;
  virtual void forgot(std::uint32_t job, std::uint32_t rank) = 0;  // all results: another process follows
  virtual void failed(std::uint32_t job, std::uint32_t rank, const Error& error, std::optional<std::uint64_t> operation) = 0;
  virtual void straggled() = 0;

 protected:
  ~Witness() = default;
};

class WorkerHost final : public Host {
 public:
  struct Place {
    std::uint32_t job = 0, rank = 0;
    std::uint32_t life = 0;           // counts restarts of the host
    std::uint32_t attempts_used = 0;  // by earlier lives
    std::uint16_t first_port = 0;
  };

  WorkerHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol, Witness& witness,
             Tally& tally, const Place& place, Time start);

  void turn(std::span<const Datagram> datagrams, Time now) override;
  void on_reply(const ControlReply& reply, Time now) override;
  [[nodiscard]] Time next_wake() const override;

  // Called by the host's operating system at its death: connections break, and no message is sent.
  void die();

  [[nodiscard]] bool ended() const { return phase_ == Phase::ended; }
  [[nodiscard]] bool running() const { return phase_ == Phase::running; }
  [[nodiscard]] bool inside_operation() const { return phase_ == Phase::running && !under_way_.empty(); }
  [[nodiscard]] std::uint32_t attempts_used() const { return attempt_; }
  void count_events(Tally& tally) const;  // of the current attempt

 private:
  enum class Phase : std::uint8_t { waiting, probing, joining, running, ended };

  struct Site {
    std::unique_ptr<PathProbe> probe;
    std::unique_ptr<HostSink> probe_sink;
    std::optional<session::Admission> admission;
    std::uint64_t join = 0;  // the unanswered call; 0: none
    std::uint64_t beat = 0;  // the unanswered heartbeat; 0: none
    Time beat_deadline = never;
  };
  struct Lane {
    std::unique_ptr<WorkerLane> lane;
    std::unique_ptr<HostSink> sink;
    std::size_t site = 0;
    std::size_t queued = 0;  // operations of under_way_, from the front, handed to the lane
    Endpoint self;
    bool failure_seen = false;
  };
  struct UnderWay {
    stream::Operation call, sent;
    std::vector<std::byte> tensor;
    Time issued{}, deadline = never;
    std::uint32_t lanes_remaining = 0;
    bool replay = false;  // of an operation whose result this rank has
  };

  [[nodiscard]] const JobPlan& plan() const { return scenario_.jobs[place_.job]; }
  [[nodiscard]] Endpoint own_endpoint(std::uint32_t lane) const {  // `lane`: counted over all aggregators
    return endpoint_of(id(), static_cast<std::uint16_t>(place_.first_port + lane));
  }
  [[nodiscard]] Endpoint aggregator_endpoint(std::uint32_t lane) const {
    return endpoint_of(lane / scenario_.lanes, static_cast<std::uint16_t>(aggregator_port + lane % scenario_.lanes));
  }
  // The number of the rank's process: a host may run several.
  [[nodiscard]] std::uint32_t process() const { return place_.life * 64 + restarts_; }
  [[nodiscard]] bool recovering() const { return log_.has_value(); }
  [[nodiscard]] std::string name() const { return plan().name + " rank " + std::to_string(place_.rank); }
  [[nodiscard]] std::uint32_t measured_elements() const;
  void begin(Time now);
  void probe(std::span<const Datagram> datagrams, Time now);
  void join();
  void start(Time now);
  void resume();
  void issue(Time now);
  void schedule_issue(Time now);
  void submit(Lane& lane, Time now);
  void collect(Lane& lane, Time now);
  [[nodiscard]] bool parted(Time now);
  void beat(Time now);
  [[nodiscard]] std::optional<Error> look(Time now);
  [[nodiscard]] std::optional<session::Stall> oldest_stall() const;
  void fail(const Error& error, Time now);
  void leave();
  void end_attempt(Time now);
  void close();

  const Scenario& scenario_;
  const Protocol& protocol_;
  Witness& witness_;
  Tally& tally_;
  Place place_;
  Random random_;
  Phase phase_ = Phase::waiting;
  std::uint32_t attempt_ = 0;
  Time next_attempt_{}, join_deadline_ = never;
  std::uint64_t next_call_;  // control calls
  std::vector<Site> sites_;
  std::vector<Lane> lanes_;
  std::optional<session::Supervisor> supervisor_;
  std::optional<Error> refusal_;
  Time next_beat_ = never;

  std::optional<stream::OperationLog> log_;           // of a job that recovers, once it has begun
  std::vector<std::uint32_t> former_epochs_;          // of the rank, by site
  std::uint32_t restarts_ = 0;                        // of the process
  std::uint64_t next_operation_ = 0, delivered_ = 0;  // numbers; operations of former processes count
  Time next_issue_ = never, parting_ = never;
  std::deque<UnderWay> under_way_;
};

}  // namespace netsum::sim
