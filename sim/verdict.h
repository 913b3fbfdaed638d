// Judges what ranks experience: results against the oracle and against each other, errors against the faults that were
// injected.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "netsum/error.h"
#include "sim/faults.h"
#include "sim/scenario.h"

namespace netsum::sim {

class Verdict {
 public:
  explicit Verdict(const Scenario& scenario);

  // Throws Violation if a result is wrong, or differs from another rank's or attempt's.
  void delivered(std::uint32_t job, std::uint32_t rank, const stream::Operation& call, std::span<const std::byte> result);

  // Throws Violation if no fault explains the error, or if it names a rank to which nothing happened.
  void failed(std::uint32_t job, std::uint32_t rank, const Error& error);

  // Something happened that may end jobs.
  void rank_disturbed(std::uint32_t job, std::uint32_t rank) { ranks_[job][rank] = true; }
  void aggregator_disturbed() { aggregators_ = true; }

 private:
  [[nodiscard]] bool explained(std::uint32_t job) const;  // that this job does not go on

  const Scenario& scenario_;
  std::vector<std::vector<bool>> ranks_;  // [job][rank]: died, was away, or has ended in an error
  std::vector<bool> jobs_failed_;         // a rank has ended in an error
  bool aggregators_ = false;
  std::vector<std::vector<std::optional<std::vector<std::byte>>>> results_;  // [job][operation]: the first one
};

// The ranks that an error's text names: "rank 3", "ranks 1, 2", "ranks 1 and 2".
[[nodiscard]] std::vector<std::uint32_t> ranks_named(const std::string& text);

}  // namespace netsum::sim
