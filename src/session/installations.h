// Which switches must know of which jobs (ATP's dynamic job setup, §3.2; NetReduce's trees, §3.3). A switch's knowledge is
// soft state with a lease: it is told again and again while the job runs, so that one that restarts learns it anew, and
// forgets a job whose aggregator fell silent. Pure: the caller sends what is due.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"

namespace netsum::session {

inline constexpr Duration installation_interval = std::chrono::milliseconds(500);  // from an answer to the next telling
inline constexpr Duration installation_retry = std::chrono::milliseconds(125);     // between two without an answer
inline constexpr Duration installation_lease = std::chrono::seconds(3);            // what a switch grants
inline constexpr Duration installation_patience = std::chrono::milliseconds(500);  // what a new job waits for a switch

class Installations {
 public:
  struct Due {
    std::uint64_t job_epoch = 0;
    std::string a_switch;
    bool again = false;  // it has answered before
  };

  // `needed`: the job cannot do without any of them, and waits for all. A switch that answers only later might have been
  // told before, and have lost sums since.
  void add(std::uint64_t job_epoch, const std::vector<std::string>& switches, Time now, bool needed = false) {
    Job& job = jobs_[job_epoch];
    job.ready_at = now + installation_patience;
    job.needed = needed;
    for (const std::string& name : switches) job.switches[name] = {now, now, false};
  }
  void remove(std::uint64_t job_epoch) { jobs_.erase(job_epoch); }
  void on_installed(std::uint64_t job_epoch, const std::string& a_switch, Time now) {
    const auto job = jobs_.find(job_epoch);
    if (job == jobs_.end()) return;
    const auto found = job->second.switches.find(a_switch);
    if (found == job->second.switches.end()) return;
    found->second.told = true;
    found->second.heard = now;
    found->second.due = now + installation_interval;
  }

  // Whether the job's ranks may start: every switch knows it, or, where the job can do without, has been waited for long
  // enough. Without it they would only find out by themselves that it does not answer.
  [[nodiscard]] bool ready(std::uint64_t job_epoch, Time now) const {
    const auto job = jobs_.find(job_epoch);
    if (job == jobs_.end() || (!job->second.needed && now >= job->second.ready_at)) return true;
    for (const auto& [name, a_switch] : job->second.switches) {
      if (!a_switch.told) return false;
    }
    return true;
  }

  // To be told now; each is due again soon, if it does not answer.
  [[nodiscard]] std::vector<Due> take_due(Time now) {
    std::vector<Due> due;
    for (auto& [epoch, job] : jobs_) {
      for (auto& [name, a_switch] : job.switches) {
        if (a_switch.due > now) continue;
        a_switch.due = now + installation_retry;
        due.push_back({epoch, name, a_switch.told});
      }
    }
    return due;
  }
  // A switch that a job needs has not answered for as long as it would remember the job itself.
  [[nodiscard]] std::vector<Due> silent(Time now) const {
    std::vector<Due> list;
    for (const auto& [epoch, job] : jobs_) {
      if (!job.needed) continue;
      for (const auto& [name, a_switch] : job.switches) {
        if (now - a_switch.heard >= installation_lease) list.push_back({epoch, name, a_switch.told});
      }
    }
    return list;
  }
  [[nodiscard]] Time next_timeout(Time now) const {
    Time next = never;
    for (const auto& [epoch, job] : jobs_) {
      if (job.ready_at > now && !ready(epoch, now)) next = std::min(next, job.ready_at);
      for (const auto& [name, a_switch] : job.switches) next = std::min(next, a_switch.due);
    }
    return next;
  }

 private:
  struct Switch {
    Time due{};
    Time heard{};
    bool told = false;  // it has answered once
  };
  struct Job {
    Time ready_at{};
    bool needed = false;
    std::map<std::string, Switch> switches;
  };
  std::map<std::uint64_t, Job> jobs_;
};

}  // namespace netsum::session
