// A host that runs one rank of one job: its session machine, its lanes, and its program. When the rank has ended with an
// error, a launcher starts its process again.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "session/rank.h"
#include "sim/aggregator_host.h"
#include "sim/checked_lane.h"
#include "sim/host.h"
#include "sim/program.h"
#include "sim/protocol.h"
#include "sim/random.h"
#include "sim/scenario.h"
#include "stream/admittance.h"
#include "stream/operation_log.h"

namespace netsum::sim {

// Where a rank is in its program, before an operation.
struct Position {
  std::uint64_t index = 0;                         // of the program's next call
  std::uint32_t admits = 0;                        // so often the ranks have let new processes in before that call
  bool admitted = false;                           // and need not any more
  std::optional<stream::Admittance> admittance{};  // they are at it
  std::uint32_t steps = 0;                         // and have done as much of it
};

// Observer of the ranks' results and errors.
class Witness {
 public:
  // `epochs`: of the job, at each of its aggregators. `process`: of the rank, counted from 0.
  // `members`: of this life of the job; empty: all ranks.
  virtual void began(std::uint32_t job, std::uint32_t rank, std::span<const std::uint64_t> epochs, std::uint32_t process,
                     const RankSet& members, std::uint32_t life) = 0;
  // `summed`: the ranks whose values it says that the result has in it; empty: all.
  virtual void delivered(std::uint32_t job, std::uint32_t rank, const stream::Operation& call,
                         std::span<const std::byte> result, std::span<const std::uint64_t> epochs,
                         const RankSet& summed) = 0;
  // The result of operation `number`, in which the ranks say whether they were there before others were let in.
  virtual void introduced(std::uint32_t /*job*/, std::uint32_t /*rank*/, std::uint64_t /*number*/,
                          std::span<const std::byte> /*here_before*/, std::span<const std::uint64_t> /*epochs*/,
                          const RankSet& /*summed*/) {}
  // By job and rank, and its operations' numbers: what an application would know from checkpoints, or from other ranks.
  struct Positions {
    bool ended = false;  // that process; some results may have been its own alone
    std::map<std::uint64_t, Position> before{};
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Positions> positions{};
  virtual void forgot(std::uint32_t job, std::uint32_t rank) = 0;  // all results: another process follows
  virtual void failed(std::uint32_t job, std::uint32_t rank, const Error& error, std::optional<std::uint64_t> operation) = 0;
  virtual void straggled() = 0;

 protected:
  ~Witness() = default;
};

class WorkerHost final : public Host, private session::Rank::Operations {
 public:
  struct Place {
    std::uint32_t job = 0, rank = 0;
    std::uint32_t life = 0;           // counts restarts of the host
    std::uint32_t attempts_used = 0;  // by earlier lives
    std::uint16_t first_port = 0;
  };

  WorkerHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol, Witness& witness,
             Tally& tally, const Place& place, std::unique_ptr<Program> program, Time start);

  void turn(std::span<const Datagram> datagrams, Time now) override;
  void on_reply(const ControlReply& reply, Time now) override;
  [[nodiscard]] Time next_wake() const override;

  // Called by the host's operating system at its death: connections break, and no message is sent.
  void die();

  [[nodiscard]] bool ended() const { return !rank_ && next_launch_ == never; }
  [[nodiscard]] bool running() const { return rank_ && rank_->running(); }
  [[nodiscard]] bool inside_operation() const { return running() && !under_way_.empty(); }
  [[nodiscard]] std::uint32_t attempts_used() const { return attempt_; }
  void count_events(Tally& tally) const;  // of the current attempt
  // Of the current attempt's lanes together.
  [[nodiscard]] std::vector<CounterValue> counters() const;
  [[nodiscard]] protocol::LaneTotals totals() const;

 private:
  struct Site {
    std::uint32_t number = 0;  // among aggregators_
    std::unique_ptr<PathProbe> probe;
    std::unique_ptr<HostSink> probe_sink;
    std::uint64_t join = 0, beat = 0;  // the calls that are answered to the machine; 0: none
  };
  struct Looked {
    std::size_t number = 0;
    Time until{};
  };
  struct Lane {
    std::unique_ptr<CheckedLane> lane;
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
    bool replay = false;      // of an operation whose result this rank has
    bool has_result = false;  // some rank has it
    bool admits = false;      // one of an Admittance's operations
    std::uint64_t index = 0;  // else which of the program's calls
  };

  // The last call, and those that let new processes in.
  [[nodiscard]] bool waits_for_all(const UnderWay& operation) const {
    return operation.admits || operation.index + 1 == plan().calls.size();
  }
  [[nodiscard]] const JobPlan& plan() const { return scenario_.jobs[place_.job]; }
  [[nodiscard]] Endpoint own_endpoint(std::uint32_t lane) const {  // `lane`: counted over all aggregators
    return endpoint_of(id(), static_cast<std::uint16_t>(place_.first_port + lane));
  }
  [[nodiscard]] Endpoint aggregator_endpoint(std::uint32_t lane) const {
    return endpoint_of(aggregators_[lane / scenario_.lanes],
                       static_cast<std::uint16_t>(aggregator_port + lane % scenario_.lanes));
  }
  // The number of the rank's process: a host may run several.
  [[nodiscard]] std::uint32_t process() const { return place_.life * 64 + restarts_; }
  [[nodiscard]] std::uint32_t attempt_number() const { return place_.life * 64 + attempt_; }  // of all its processes
  [[nodiscard]] bool recovering() const { return log_.has_value(); }
  [[nodiscard]] std::string name() const { return plan().name + " rank " + std::to_string(place_.rank); }
  [[nodiscard]] std::uint32_t measured_elements() const;
  [[nodiscard]] bool may_move() const {
    return plan().workers + scenario_.parent_of_switch.size() < 32 && plan().numbers != Numbers::in_order;
  }
  [[nodiscard]] std::string switch_address() const;
  void launch(Time now);
  void carry_out(Time now);  // the session machine's actions
  void carry_out(const session::Rank::Prepare&, Time now);
  void carry_out(const session::Rank::Join&, Time now);
  void carry_out(const session::Rank::Cancel&, Time now);
  void carry_out(const session::Rank::Start&, Time now);
  void carry_out(const session::Rank::Beat&, Time now);
  void carry_out(const session::Rank::Look&, Time now);
  void carry_out(const session::Rank::Leave&, Time now);
  void carry_out(const session::Rank::Suspend&, Time now);
  void carry_out(const session::Rank::Retry&, Time now);
  void carry_out(const session::Rank::Warn&, Time now);
  void carry_out(const session::Rank::End&, Time now);
  template <class What>
  void call(std::size_t site, std::uint64_t number, What what);

  void reach(Time now);
  void probe(std::span<const Datagram> datagrams, Time now);
  void prepared(Time now);
  void resume(const stream::Resumption& resumption);
  void serve(std::span<const Datagram> datagrams, Time now);
  [[nodiscard]] bool let_in(Time now);
  void issue(Time now);
  void schedule_issue(Time now);
  [[nodiscard]] bool must_admit() const;
  void take_position(const stream::Resumption& resumption);
  void issue_admittance(UnderWay& next);
  void end_admittance(const UnderWay& done, const RankSet& summed);
  void keep_position();
  void submit(Lane& lane, Time now);
  void collect(Lane& lane, Time now);
  [[nodiscard]] bool parted(Time now);
  [[nodiscard]] std::uint32_t after_this() const;
  void report_failures(Time now);
  [[nodiscard]] std::optional<session::Stall> oldest_stall() override;
  [[nodiscard]] std::string call(std::uint64_t operation) override;
  [[nodiscard]] std::optional<Overdue> overdue(Time now) override;
  [[nodiscard]] session::Pace pace(Time now) override;

  void say_failed(const Error& error);
  void close_lanes();

  const Scenario& scenario_;
  const Protocol& protocol_;
  Witness& witness_;
  Tally& tally_;
  Place place_;
  std::vector<HostId> aggregators_;  // of the job
  RankSet members_, late_;           // of the life that runs; no members: all ranks
  const std::unique_ptr<Program> program_;
  Random random_;
  Time next_launch_{};                 // of the rank's process
  std::uint32_t attempt_ = 0;          // to join
  std::optional<session::Rank> rank_;  // none: the process does not run
  bool probing_ = false;
  // Whether aggregators answer: asked by calls with these numbers, before a join until `reached_by_`, and of those that do
  // not serve the job.
  std::map<std::uint64_t, std::uint32_t> asked_;
  std::map<std::uint64_t, Looked> looked_;
  Time reached_by_ = never;
  std::vector<std::uint32_t> reached_;
  bool past_switch_ = false;
  Time join_deadline_ = never;
  std::map<std::uint32_t, CloseCall> connected_;  // to aggregators of the life that runs, by number
  std::vector<std::uint64_t> job_epochs_;         // at each aggregator; 0: it does not serve this life
  std::uint64_t next_call_;                       // control calls
  std::vector<Site> sites_;
  std::vector<Lane> lanes_;

  std::optional<stream::OperationLog> log_;           // of a job that recovers, once it has begun
  std::uint32_t restarts_ = 0;                        // of the process
  std::uint64_t next_operation_ = 0, delivered_ = 0;  // numbers; operations of former processes count
  Position position_;
  bool came_in_ = false;  // let in, and not introduced
  Time next_issue_ = never, parting_ = never;
  Time free_since_{};  // outside of calls
  std::deque<UnderWay> under_way_;
  std::vector<RxView> views_;  // of one lane, in a turn
};

}  // namespace netsum::sim
