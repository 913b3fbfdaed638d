// An aggregator's life cycle: calls of ranks come in, and what is to be done comes out, in one order. A pure state machine
// around the registry, for daemons (control/server.cc) and the simulator (sim/aggregator_host.cc) alike: the owner carries
// out each step, tells how it went, and asks for the next until there is nothing to do.
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

class Aggregator {
 public:
  using Call = std::uint64_t;  // the owner's number of a join, from join() to its answer

  struct Answer {
    Call call = 0;
    bool late = false;    // its deadline came first, while `missing` had not joined
    RankSet missing{};    // empty: the rank's own former process has not ended
    JoinOutcome outcome;  // of a join that is not late
  };
  struct Step {
    Changes changes;  // first the stops, then the starts; before the answers
    std::vector<JobFailure> failures;
    std::vector<Answer> answers;
    [[nodiscard]] bool empty() const {
      return changes.stops.empty() && changes.starts.empty() && failures.empty() && answers.empty();
    }
  };

  explicit Aggregator(RegistryConfig config) : registry_(std::move(config)) {}

  [[nodiscard]] Registry& registry() { return registry_; }
  [[nodiscard]] const Registry& registry() const { return registry_; }

  // ---- calls of ranks. `tenant`: of the caller; nobody touches another tenant's jobs.

  // `deadline`: for the answer; `never`: the caller cancels.
  void join(Call call, const JoinRequest& request, Time deadline, Time now);
  // The caller does not wait any more. False: it has its answer.
  bool cancel(Call call, Time now);
  [[nodiscard]] HeartbeatReply heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                                         const std::string& tenant, Time now);
  void leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, const std::string& tenant, Time now);

  // ---- what is to be done

  // A rank hears of its admission when every lane serves the job, and `ready`: the job's switches know it. Without them the
  // job would start on a detour, or cannot start.
  [[nodiscard]] Step step(Time now, const std::function<bool(std::uint64_t job_epoch)>& ready);
  // From next_timeout() on: deadlines of joins, ranks that fell silent. Whatever ranks have said comes first: a rank is not
  // silent because its call waits here.
  void on_timer(Time now);
  // Every join that waits is answered from here on, and nothing is started.
  void shut_down(Time now);

  // ---- what the owner has done

  void on_started(const StartJob& start);
  void on_start_failed(std::uint64_t job_epoch, const std::string& reason, Time now);  // no lane serves it
  void on_stopped(std::uint64_t job_epoch);
  // What the data plane shows of a job, and its ranks cannot see themselves.
  void on_view(std::uint64_t job_epoch, JobView view, Time now);

  // ---- for the owner's clock and checks

  [[nodiscard]] Time next_timeout() const;
  [[nodiscard]] std::size_t waiting() const { return joins_.size(); }
  // Jobs that lanes serve, with StartJob::watched.
  [[nodiscard]] const std::map<std::uint64_t, bool>& running() const { return running_; }
  [[nodiscard]] std::vector<std::uint64_t> watched() const;

 private:
  struct Join {
    std::uint64_t ticket = 0;
    Time deadline{};
  };
  void forget(std::map<Call, Join>::iterator join);

  Registry registry_;
  std::map<Call, Join> joins_;
  std::map<std::uint64_t, Call> calls_;        // by ticket
  std::set<std::pair<Time, Call>> deadlines_;  // but those that are `never`
  std::vector<Answer> late_;
  std::map<std::uint64_t, bool> running_;
  std::map<std::uint64_t, JobView> views_;
  bool stopping_ = false;
};

}  // namespace netsum::session
