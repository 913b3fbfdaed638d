// Tensors that every rank can recompute from a seed, and verdicts on their reductions: for the benchmark, which judges each
// result of each rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "oracle/reduction.h"

namespace netsum::oracle {

struct Verdict {
  std::uint64_t wrong = 0;          // elements outside their bound
  double max_abs_error = 0;         // over all elements
  double error_bound = 0;           // the largest of all elements' bounds
  double max_error_over_bound = 0;  // at most 1 if nothing is wrong

  void merge(const Verdict& other);
};

class Drawn {
 public:
  // Of sums and averages that have a bound, inputs are 2^magnitude times as large; not for float16.
  Drawn(std::uint64_t seed, const Reduction& reduction, int magnitude = 0)
      : seed_(seed), reduction_(reduction), magnitude_(magnitude) {}

  // The same of some of the ranks.
  [[nodiscard]] Drawn among(std::vector<std::uint32_t> members) const {
    Drawn fewer = *this;
    fewer.reduction_.ranks = static_cast<std::uint32_t>(members.size());
    fewer.reduction_.members = std::move(members);
    return fewer;
  }

  // This rank's input of this iteration.
  void fill(std::span<std::byte> tensor, std::uint32_t rank, std::uint64_t iteration) const;
  // Judges a result against the inputs of all ranks.
  [[nodiscard]] Verdict check(std::span<const std::byte> tensor, std::uint64_t iteration) const;

 private:
  // What oracle/drawn_sums.h is fast enough for.
  [[nodiscard]] bool sums() const;
  void fill_exactly(std::span<std::byte> tensor, std::uint32_t rank, std::uint64_t iteration, std::uint64_t first) const;
  [[nodiscard]] Verdict check_exactly(std::span<const std::byte> tensor, std::uint64_t iteration) const;

  std::uint64_t seed_;
  Reduction reduction_;
  int magnitude_;
};

}  // namespace netsum::oracle
