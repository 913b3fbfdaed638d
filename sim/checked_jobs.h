// What the checks of services have in common: the counters of each lane's jobs, of those that have ended too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/counter_list.h"
#include "sim/faults.h"
#include "sim/protocol.h"

namespace netsum::sim {

template <class JobCounters>
class CheckedJobs : public CheckedService {
 public:
  explicit CheckedJobs(std::size_t lanes) : ended_(lanes) {}

  void on_start(const session::StartJob& start, const JobPlan& plan) override {
    jobs_[start.admission.job_epoch] = {start.admission.slots, !plan.mismatch};
  }
  void on_install(const session::SwitchMessage& message, const JobPlan& plan) override {
    jobs_[message.job_epoch] = {slots_of(message), !plan.mismatch};
  }
  void on_stop(std::uint64_t epoch) override {
    for (std::size_t lane = 0; lane < lanes(); ++lane) {
      if (const JobCounters* const counters = job_counters(lane, epoch)) add(ended_[lane], *counters);
    }
    jobs_.erase(epoch);
  }
  [[nodiscard]] std::size_t lanes_serving(std::uint64_t epoch) const override {
    std::size_t serving = 0;
    for (std::size_t lane = 0; lane < lanes(); ++lane) serving += job_counters(lane, epoch) != nullptr;
    return serving;
  }

 protected:
  struct Job {
    std::uint32_t slots = 0;  // per lane; 0: unknown
    bool agreed = true;  // all ranks issue the same calls: then no worker ever advances before its slot's chunk is complete
  };

  // Of a job that a switch is told of; 0: unknown.
  [[nodiscard]] virtual std::uint32_t slots_of(const session::SwitchMessage&) const { return 0; }
  // Null: the lane does not serve the job, or not yet: its switches are not known.
  [[nodiscard]] virtual const JobCounters* job_counters(std::size_t lane, std::uint64_t epoch) const = 0;

  [[nodiscard]] std::size_t lanes() const { return ended_.size(); }
  [[nodiscard]] const std::map<std::uint64_t, Job>& jobs() const { return jobs_; }  // by epoch
  [[nodiscard]] JobCounters total(std::size_t lane) const {
    JobCounters total = ended_[lane];
    for (const auto& [epoch, job] : jobs_) {
      if (const JobCounters* const counters = job_counters(lane, epoch)) add(total, *counters);
    }
    return total;
  }

  // `without_job`: outcomes of the lane's packets that belong to no job. `whose`: the counters', for the violation.
  void check_packets(std::size_t lane, std::uint64_t without_job, std::uint64_t received, const char* whose) const {
    for (const auto& [epoch, job] : jobs_) {
      const JobCounters* const counters = job_counters(lane, epoch);
      if (counters != nullptr && counters->packets != outcomes(*counters))
        throw Violation(std::string(whose) + " counters of a job do not add up to its packets");
    }
    if (total(lane).packets + without_job != received)
      throw Violation(std::string(whose) + " counters do not add up to what it received");
  }

 private:
  std::map<std::uint64_t, Job> jobs_;
  std::vector<JobCounters> ended_;  // by lane
};

}  // namespace netsum::sim
