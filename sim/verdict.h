// Judges what ranks observe: results against the oracle and against each other, errors against the injected faults.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "netsum/error.h"
#include "sim/faults.h"
#include "sim/scenario.h"

namespace netsum::sim {

class Verdict {
 public:
  explicit Verdict(const Scenario& scenario);

  // A process of the rank runs under these epochs of the job, one of each aggregator.
  void began(std::uint32_t job, std::uint32_t rank, std::span<const std::uint64_t> epochs, std::uint32_t process);
  // The rank's process has ended; its results are lost.
  void forgot(std::uint32_t job, std::uint32_t rank);

  // Throws Violation if a result is wrong, or differs from another rank's or attempt's. It is the sum over the processes
  // that an aggregator has seen under its epoch. Those of two aggregators may differ while a rank begins anew: then it
  // cannot be under way at both, and a result comes from one of them. In a job that recovers, a result is binding as long
  // as any rank has it.
  void delivered(std::uint32_t job, std::uint32_t rank, const stream::Operation& call, std::span<const std::byte> result,
                 std::span<const std::uint64_t> epochs);

  // Throws Violation if no fault explains the error, or if it names a rank without a fault.
  void failed(std::uint32_t job, std::uint32_t rank, const Error& error);

  // A fault that may end jobs.
  void rank_disturbed(std::uint32_t job, std::uint32_t rank) { ranks_[job][rank] = true; }
  void aggregator_disturbed() { aggregators_ = true; }

 private:
  [[nodiscard]] bool explained(std::uint32_t job) const;  // whether a known cause explains that this job is stuck
  // By aggregator: the process of each rank. Without aggregators that some rank has not reached under this epoch.
  [[nodiscard]] std::set<std::vector<std::uint32_t>> groups(std::uint32_t job, std::span<const std::uint64_t> epochs) const;

  const Scenario& scenario_;
  std::vector<std::vector<bool>> ranks_;  // [job][rank]: died, was absent, or ended in an error
  std::vector<bool> jobs_failed_;         // a rank has ended in an error
  bool aggregators_ = false;
  struct Result {
    std::optional<std::vector<std::byte>> bytes;  // the first result; if the job recovers, the last binding one
    std::set<std::uint32_t> holders;              // ranks whose process has it
  };
  std::vector<std::vector<Result>> results_;  // [job][operation]
  // [job], by aggregator and epoch: the process of each rank that has begun
  using Life = std::pair<std::size_t, std::uint64_t>;
  std::vector<std::map<Life, std::vector<std::optional<std::uint32_t>>>> members_;
};

// The ranks that an error's text names: "rank 3", "ranks 1, 2", "ranks 1 and 2".
[[nodiscard]] std::vector<std::uint32_t> ranks_named(const std::string& text);

}  // namespace netsum::sim
