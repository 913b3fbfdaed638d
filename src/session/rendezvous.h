// An aggregator's life cycle: ranks' calls come in, and steps to carry out come out, in one order. A pure state machine
// around the registry, for daemons (control/server.cc) and the simulator (sim/aggregator_host.cc): the owner carries out
// each step, reports the result, and asks for the next step until there is nothing to do.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "session/job_view.h"
#include "session/registry.h"

namespace netsum::session {

class Rendezvous {
 public:
  using Call = std::uint64_t;  // the owner's number for a join, from join() to its answer

  struct Answer {
    Call call = 0;
    bool late = false;    // its deadline passed, while `missing` had not joined
    RankSet missing{};    // empty: the rank's former process has not ended
    JoinOutcome outcome;  // unless late
  };
  struct Step {
    Changes changes;  // stops first, then starts; both before the answers
    std::vector<Answer> answers;
    std::vector<JobEvent> events;  // nothing to carry out: for the flight recorder
    [[nodiscard]] bool empty() const { return changes.stops.empty() && changes.starts.empty() && answers.empty(); }
  };

  explicit Rendezvous(RegistryConfig config) : registry_(std::move(config)) {}

  [[nodiscard]] Registry& registry() { return registry_; }
  [[nodiscard]] const Registry& registry() const { return registry_; }

  // ---- ranks' calls. `tenant`: the caller's; no caller touches another tenant's jobs.

  // `deadline`: for the answer; `never`: the caller cancels.
  void join(Call call, const JoinRequest& request, Time deadline, Time now);
  // The caller no longer waits. False: the join was already answered.
  bool cancel(Call call, Time now);
  [[nodiscard]] HeartbeatReply heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                                         const std::string& tenant, Time now, const std::string& call = {},
                                         const SiteSet& seen = {}, const Pace& pace = {});
  void leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, const std::string& tenant,
             const Farewell& why, Time now);

  // The connection of such a life has ended.
  void closed(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now);

  // ---- steps

  // A rank is told of its admission when every lane serves the job, and `ready`: the job's switches know it. Without them
  // the job would start on a detour, or not at all.
  [[nodiscard]] Step step(Time now, const std::function<bool(std::uint64_t job_epoch)>& ready);
  // At next_timeout(): deadlines of joins, ranks that fell silent. Hand in the ranks' calls first: a rank is not silent
  // while its call waits here.
  void on_timer(Time now);
  // From now on every pending join is answered, and nothing is started.
  void shut_down(Time now);

  // ---- results of steps

  void on_started(const StartJob& start);
  void on_start_failed(std::uint64_t job_epoch, const std::string& reason, Time now);  // no lane serves the job
  void on_stopped(std::uint64_t job_epoch);
  // Facts about a job that only the data plane sees.
  void on_view(std::uint64_t job_epoch, JobView view, Time now);

  // ---- for the owner's clock and checks

  [[nodiscard]] Time next_timeout() const;
  [[nodiscard]] std::size_t waiting() const { return joins_.size(); }
  [[nodiscard]] std::vector<std::uint64_t> watched() const;  // jobs that lanes serve, with StartJob::watched

 private:
  struct Join {
    std::uint64_t ticket = 0;
    Time deadline{};
  };
  void forget(std::map<Call, Join>::iterator join);

  Registry registry_;
  std::map<Call, Join> joins_;
  std::map<std::uint64_t, Call> calls_;        // by ticket
  std::set<std::pair<Time, Call>> deadlines_;  // without those that are `never`
  std::vector<Answer> late_;
  std::map<std::uint64_t, bool> running_;  // jobs that lanes serve, and whether they are watched
  std::map<std::uint64_t, JobView> views_;
  bool stopping_ = false;
};

}  // namespace netsum::session
