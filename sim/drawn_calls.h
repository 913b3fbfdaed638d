// The calls of a job that was drawn from a seed, with random pauses in between.
#pragma once

#include "sim/program.h"
#include "sim/scenario.h"
#include "sim/worker_host.h"

namespace netsum::sim {

class DrawnCalls final : public Program {
 public:
  DrawnCalls(const Scenario& scenario, std::uint32_t job, std::uint32_t rank, Witness& witness, Tally& tally)
      : kinds_(scenario.settings.limits.kinds), plan_(scenario.jobs[job]), rank_(rank), witness_(witness), tally_(tally) {
    const auto& lasting = scenario.lasting;
    if (lasting && lasting->kind == Fault::slow_rank && lasting->is_of(job, rank)) late_ = lasting->late;
  }

  [[nodiscard]] Time next(std::uint64_t number, std::size_t pending, Time now, Random& random) override;
  [[nodiscard]] Call make(std::uint64_t number, std::uint32_t process) override;
  [[nodiscard]] bool ended(std::uint64_t results) const override { return results == plan_.calls.size(); }

 private:
  const FaultSet kinds_;
  const JobPlan& plan_;
  const std::uint32_t rank_;
  Witness& witness_;
  Tally& tally_;
  Duration late_{};
  std::uint64_t asked_ = UINT64_MAX;  // of a late rank: its next call
  Time ready_{};
};

}  // namespace netsum::sim
