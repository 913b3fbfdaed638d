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

#include "base/bitmap.h"
#include "base/time.h"
#include "netsum/error.h"
#include "sim/faults.h"
#include "sim/scenario.h"

namespace netsum::sim {

class Verdict {
 public:
  explicit Verdict(const Scenario& scenario, bool names_missing = true);  // Protocol's

  // A process of the rank runs under these epochs of the job, one of each aggregator.
  void began(std::uint32_t job, std::uint32_t rank, std::span<const std::uint64_t> epochs, std::uint32_t process,
             const RankSet& members = {}, std::uint32_t life = 1);
  // The rank's process has ended; its results are lost.
  void forgot(std::uint32_t job, std::uint32_t rank);

  // Throws Violation if a result is wrong, or differs from another rank's or attempt's. It is the sum over the processes
  // that an aggregator has seen under its epoch. Those of two aggregators may differ while a rank begins anew: then it
  // cannot be under way at both, and a result comes from one of them. In a job that recovers, a result is binding as long
  // as any rank has it. In a job with survivors it is the sum over the ranks that it names, and the members of a life have
  // results of the same ranks.
  void delivered(std::uint32_t job, std::uint32_t rank, const stream::Operation& call, std::span<const std::byte> result,
                 std::span<const std::uint64_t> epochs, const RankSet& summed = {});

  // The same of a result in which ranks say who was there before others were let in.
  void introduced(std::uint32_t job, std::uint32_t rank, std::uint64_t number, std::span<const std::byte> here_before,
                  std::span<const std::uint64_t> epochs, const RankSet& summed);

  // Throws Violation if no fault explains the error, or if it names a rank without a fault.
  void failed(std::uint32_t job, std::uint32_t rank, const Error& error);

  // A fault that may end jobs.
  void rank_disturbed(std::uint32_t job, std::uint32_t rank) { ranks_[job][rank] = true; }
  void aggregator_disturbed() { aggregators_ = true; }

 private:
  [[nodiscard]] bool explained(std::uint32_t job) const;  // whether a known cause explains that this job is stuck
  // By aggregator: the process of each rank, or `absent`. Without aggregators that some member has not reached under this
  // epoch.
  [[nodiscard]] std::set<std::vector<std::uint32_t>> groups(std::uint32_t job, std::span<const std::uint64_t> epochs) const;
  struct OfSet;
  // Whether another rank has this result; throws if one that should have it has another.
  [[nodiscard]] bool is_known(std::uint32_t job, std::uint32_t rank, std::vector<OfSet>& known,
                              std::span<const std::byte> result, std::span<const std::uint64_t> epochs,
                              const RankSet& summed, const std::string& what);
  void delivered_by_survivors(std::uint32_t job, std::uint32_t rank, const stream::Operation& call,
                              std::span<const std::byte> result, std::span<const std::uint64_t> epochs,
                              const RankSet& summed, const std::string& what);

  const Scenario& scenario_;
  const bool names_missing_;
  std::vector<std::vector<bool>> ranks_;                     // [job][rank]: died, was absent, or ended in an error
  std::vector<bool> jobs_failed_;                            // a rank has ended in an error
  std::set<std::pair<std::uint32_t, std::uint32_t>> erred_;  // job and rank: has had one
  bool aggregators_ = false;
  struct Result {
    std::optional<std::vector<std::byte>> bytes;  // the first result; if the job recovers, the last binding one
    std::set<std::uint32_t> holders;              // ranks whose process has it
  };
  std::vector<std::vector<Result>> results_;  // [job][operation]
  struct OfSet {
    RankSet summed;
    std::vector<std::byte> bytes;
    std::set<std::uint32_t> holders;
  };
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<OfSet>> results_of_sets_;  // by job and call
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<OfSet>> introductions_;    // by job and operation
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> lives_;                 // by job and rank: the latest
  // [job], by aggregator and epoch: the process of each rank that has begun
  using Life = std::pair<std::size_t, std::uint64_t>;
  struct Members {
    std::vector<std::optional<std::uint32_t>> processes;
    RankSet expected;
  };
  std::vector<std::map<Life, Members>> members_;
};

// The ranks that an error's text names: "rank 3", "ranks 1, 2", "ranks 1 and 2".
[[nodiscard]] std::vector<std::uint32_t> ranks_named(const std::string& text);

}  // namespace netsum::sim
