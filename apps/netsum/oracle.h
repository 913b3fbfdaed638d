// The benchmark's own computation of an all-reduce's result: inputs that every rank can recompute from the seed, their exact
// sum, and the bound of docs/numerics.md. Shares no code with the implementation that it checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "netsum/types.h"

namespace netsum::app {

struct Verdict {
  std::uint64_t wrong = 0;          // elements outside their bound
  double max_abs_error = 0;         // over all elements
  double error_bound = 0;           // the largest of all elements' bounds
  double max_error_over_bound = 0;  // at most 1 if nothing is wrong

  void merge(const Verdict& other);
};

// How floats travel, which decides their error.
enum class Numbers : std::uint8_t {
  block_fixed_point,
  scaled,       // times 10^8
  rescaled,     // times 10^8, or the scale that the largest value allows
  in_order,     // unconverted, added one after the other in float32
  as_float16,   // rounded to float16 if they are float32, added exactly, and rounded once
  as_bfloat16,  // rounded to bfloat16 if they are float32, and added one after the other in float32
  in_racks,     // as in_order, with racks' sums rounded to the tensor's type, on at most two levels below the root
};

class Oracle {
 public:
  Oracle(std::uint64_t seed, std::uint32_t world_size, DType dtype, ReduceOp op,
         Numbers numbers = Numbers::block_fixed_point, int magnitude = 0, std::uint32_t added_before = 1)
      : seed_(seed),
        world_size_(world_size),
        dtype_(dtype),
        op_(op),
        numbers_(numbers),
        magnitude_(magnitude),
        added_before_(added_before) {}

  // This rank's input of this iteration. Blocks of 256 elements have different magnitudes on different ranks.
  void fill(std::span<std::byte> tensor, std::uint32_t rank, std::uint64_t iteration) const;

  // Judges a result against the inputs of all ranks.
  [[nodiscard]] Verdict check(std::span<const std::byte> tensor, std::uint64_t iteration) const;

 private:
  std::uint64_t seed_;
  std::uint32_t world_size_;
  DType dtype_;
  ReduceOp op_;
  Numbers numbers_;
  int magnitude_;  // inputs are 2^magnitude times as large; not for float16
  // Inputs are added in float32 in groups of this many ranks, a divisor of the world size, before they travel.
  std::uint32_t added_before_;
};

// A 64-bit hash for comparing the results of ranks and runs (not against an adversary).
[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes);
[[nodiscard]] std::uint64_t hash_of(std::uint64_t hash, std::uint64_t next);

}  // namespace netsum::app
