// A rank's life at its aggregators: it joins them all, sends heartbeats, joins again after an error that allows it, and
// leaves. A pure state machine, for a rank's process (collective/monitor.cc) and the simulator (sim/worker_host.cc): the
// owner carries out its actions in order, reports what becomes of them, and calls on_timer() at next_timeout().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/bitmap.h"
#include "base/time.h"
#include "netsum/error.h"
#include "protocol/worker_lane.h"
#include "session/registry.h"
#include "session/supervisor.h"

namespace netsum::session {

// How often a rank looks for an aggregator that it misses, and how long for an answer; and how long it does without one at
// most that failed it again and again.
inline constexpr Duration look_interval = std::chrono::seconds(1), look_patience = std::chrono::milliseconds(900);
inline constexpr Duration longest_doubt = std::chrono::seconds(64);
// How long an attempt to join again waits for the other ranks where it did not reach all aggregators, without survivors.
inline constexpr Duration look_again = std::chrono::seconds(5);
// All ranks join all aggregators: once one has admitted a rank, the others do so soon.
inline constexpr Duration undecided_patience = std::chrono::seconds(5);

// What an aggregator knows a rank's process by.
struct Life {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank_epoch = 0;
};

class Rank {
 public:
  static constexpr std::size_t own_switch = most_aggregators;

  // ---- actions. `site`: index into the addresses of on_prepared().

  // Find out which of these aggregators can be reached, and the paths there; then on_prepared() or on_unprepared().
  struct Prepare {
    Time deadline{};
    bool again = false;                      // the job has run
    std::vector<std::string> aggregators{};  // if the job recovers, some of them will do
    bool past_switch = false;                // the rank's own switch does not answer: go around it
  };
  // Send a request, after complete(); then on_admitted() or on_refused().
  struct Join {
    std::size_t site = 0;
  };
  // The join's answer is not needed any more.
  struct Cancel {
    std::size_t site = 0;
  };
  // Begin the lanes over the aggregators of admissions(); then on_started() or on_start_failed(). `sites`: those that serve
  // this life, in order. From here on a site is its place among them.
  struct Start {
    std::vector<std::size_t> sites;
  };
  // Send a heartbeat; then on_reply() or on_no_reply(). An answer to an earlier heartbeat does not count any more.
  struct Beat {
    std::size_t site = 0;
    Life life;
    std::string call{};  // of this rank, in words, if calls differ
    SiteSet seen{};      // as HeartbeatReply::returned, by this rank alone
    Pace pace{};         // with Config::straggler_deadline
  };
  // Find out whether an aggregator that does not serve the job answers, within look_patience; then on_looked().
  struct Look {
    std::size_t number = 0;  // of Config::aggregators; own_switch: the switch that the rank goes around
    std::string address;
  };
  // Say goodbye, once.
  struct Leave {
    std::size_t site = 0;
    Life life;
    Farewell why;
  };
  // End the lanes, but not the operations. Joining again follows, for as long as `patience`.
  struct Suspend {
    Error cause;
    Duration patience{};
  };
  // An attempt to join again has failed; another one follows.
  struct Retry {
    Error error;
  };
  // Tell people: the job goes on, but an aggregator has this to say of it.
  struct Warn {
    std::string text;
  };
  // End all operations: the rank has ended.
  struct End {
    Error error;
  };
  using Action = std::variant<Prepare, Join, Cancel, Start, Beat, Look, Leave, Suspend, Retry, Warn, End>;

  // The owner's operations. Asked only if a decision or an error's text depends on them.
  class Operations {
   public:
    struct Overdue {
      std::uint64_t operation = 0;
      std::string call;  // in words
      Duration patience{};
    };
    [[nodiscard]] virtual std::optional<Stall> oldest_stall() = 0;
    [[nodiscard]] virtual std::string call(std::uint64_t operation) = 0;  // in words; empty: it is not pending
    [[nodiscard]] virtual std::optional<Overdue> overdue(Time now) = 0;   // the first whose deadline has passed
    [[nodiscard]] virtual Pace pace(Time now) = 0;

   protected:
    ~Operations() = default;
  };

  struct Config {
    std::string job;
    std::uint32_t rank = 0;
    std::vector<std::string> aggregators;             // addresses, the same for all ranks
    std::uint32_t standbys = 0;                       // as JoinRequest::standbys
    std::string switch_address;                       // that the rank is at, and may go around; empty: none
    std::optional<std::uint32_t> predecessor{};       // as Supervisor::Config's
    bool recovers = false;                            // the job outlives its processes
    Duration recovery = Duration::max();              // if so: how long this rank waits for all ranks to join again
    std::uint32_t survivors = 0;                      // as JoinRequest::survivors
    std::chrono::milliseconds straggler_deadline{0};  // as JoinRequest's
    Duration silence = std::chrono::milliseconds(default_heartbeat_timeout_ms);  // of an aggregator (liveness.h)
    std::function<Duration()> pause;                                             // before each attempt to join again
  };

  Rank(Config config, Operations& operations)
      : config_(std::move(config)), operations_(operations), aggregators_(config_.aggregators.size()) {}

  [[nodiscard]] std::vector<Action> take_actions();

  // ---- joining

  void begin(Time deadline);  // once
  // `answer_by`: when the owner's patience with the joins ends; `never`: each join ends by itself.
  // `past_switch`: the rank's own does not answer.
  void on_prepared(std::vector<std::string> addresses, Time answer_by, Time now, bool past_switch = false);
  void on_unprepared(const Error& error, Time now);
  // Adds to a request what depends on earlier attempts, except the progress.
  void complete(std::size_t site, JoinRequest& request) const;
  void on_admitted(std::size_t site, const Admission& admission, Time now);
  void on_refused(std::size_t site, const Error& error, Time now);
  [[nodiscard]] std::vector<Admission> admissions() const;  // by site; of Start, and afterwards
  void on_started(Time now);
  void on_start_failed(const Error& error, Time now);

  // ---- running

  void on_reply(std::size_t site, const HeartbeatReply& reply, Time now);
  void on_no_reply(std::size_t site, const std::string& why, Time now, bool closed = false);  // as Supervisor's
  void on_looked(std::size_t number, bool answers, Time now);
  // A lane to the site cannot go on. If the site does not know the job, that is no error yet: heartbeats, faster from now
  // on, bring the reason.
  void on_lane_failure(std::size_t site, const protocol::LaneFailure& failure, Time now);
  // Also when an operation's deadline passes, and at a call of a rank that is aside.
  void on_timer(Time now);
  // The rank has ended what it was in, and lets in who waits: it joins again, with them. Nothing if nobody does.
  void let_in(Time now);
  void leave(const Error* why = nullptr);  // null: in good order; the rank has ended

  [[nodiscard]] Time next_timeout() const;
  [[nodiscard]] bool waiting() const { return phase_ == Phase::waiting; }  // before it joins, or joins again
  // The others go on without this rank until its program makes its call.
  [[nodiscard]] bool aside() const { return phase_ != Phase::ended && set_aside_; }
  [[nodiscard]] bool joining() const { return phase_ == Phase::joining; }
  [[nodiscard]] bool running() const { return phase_ == Phase::running; }
  [[nodiscard]] RankSet knocking() const { return knocking_; }  // new processes that wait to be let in, as last heard
  [[nodiscard]] bool ended() const { return phase_ == Phase::ended; }
  [[nodiscard]] RankSet left() const { return supervisor_ ? supervisor_->left() : RankSet(); }  // ranks, in good order

 private:
  enum class Phase : std::uint8_t { waiting, preparing, joining, starting, running, ended };

  struct Site {
    std::string address;
    std::uint32_t number = 0;  // among Config::aggregators
    bool asked = false;        // for admission, and has not answered
    std::optional<Admission> admission{};
    std::optional<Error> refusal{};
    Time beat_until = never;  // the heartbeat in flight may be answered; never: there is none
  };

  // What this rank thinks of one of Config::aggregators, or of its own switch.
  struct Aggregator {
    Time doubted_until{};  // it is not joined before
    Duration doubt{};      // how long that was, the last time
    Time served_since = never;
    Time next_look{};
    bool looking = false;
  };

  void decide(Time now);  // the joins' outcome, once all are answered
  void part_from_others(const SiteSet& sites);
  void step_aside(Time now);
  void doubt(std::uint32_t number, Time now);
  static void doubt(Aggregator& aggregator, Time now);
  void doubt_silent(Time now);
  [[nodiscard]] std::uint32_t number_of(const std::string& address) const;
  // Which aggregators are missed in this life.
  [[nodiscard]] bool is_missed(std::uint32_t number) const;
  void look_for_missed(Time now);
  void look_for(Aggregator& aggregator, std::size_t number, Time now);
  void beat(Time now);
  void dispute(std::size_t site, Error error, std::string own, Time now);
  void settle(const std::vector<RankCall>& stated, Time now);
  void fail(const Error& error, Time now);
  void try_again(Time now);
  void end(const Error& error);
  void cancel_joins();
  void say_goodbye(const Error* why);
  void remember();

  const Config config_;
  Operations& operations_;
  Phase phase_ = Phase::waiting;
  std::vector<Action> actions_;
  std::vector<Site> sites_;
  std::optional<Supervisor> supervisor_;  // of the latest life that ran
  Aggregator switch_;
  bool past_switch_ = false, switch_seen_ = false;
  std::size_t tried_ = 0;                // aggregators, by the latest attempt to join again
  std::vector<Aggregator> aggregators_;  // by number
  SiteSet serving_;                      // in the life that runs
  SiteSet seen_;                         // others that answer
  Time answer_by_ = never, next_beat_ = never;

  std::optional<Error> cause_;  // of the attempts to join again
  // A site whose results are none, until that site says how the job is.
  std::optional<std::pair<std::size_t, Error>> unsealed_;
  // Ranks made different calls. The error waits for the others' ones, which their heartbeats bring to the site.
  struct Dispute {
    std::size_t site = 0;
    Error error;
    std::string own;  // this rank's call
    Time until{};
    bool stated = false;  // a heartbeat says it
  };
  std::optional<Dispute> dispute_;
  Error last_{ErrorCode::internal, ""};
  bool ended_by_operator_ = false;
  Time give_up_ = never, next_attempt_ = never;
  std::map<std::string, std::uint32_t> former_epochs_;  // of this rank in lives that it gave up, by address
  std::uint32_t life_ = 0;                              // of the job, in which this process was last
  RankSet knocking_;
  bool lets_in_ = false;    // with the next attempt to join again
  RankSet members_;         // of that life
  RankSet aside_;           // likewise: ranks that were late
  bool set_aside_ = false;  // this rank is one of them, in a later life
  Pace pace_;               // as the latest attempt to join again began
};

}  // namespace netsum::session
