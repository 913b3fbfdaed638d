// Inputs and exact results of the reductions that have no bound: integers and booleans, minima and maxima,
// products, and doubles (docs/numerics.md, "Other operations").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "netsum/types.h"
#include "oracle.h"

namespace netsum::app {

class ExactOracle {
 public:
  ExactOracle(std::uint64_t seed, std::uint32_t world_size, DType dtype, ReduceOp op)
      : seed_(seed), world_size_(world_size), dtype_(dtype), op_(op) {}

  // As Oracle's (oracle.h). `first`: the number of the first element.
  void fill(std::span<std::byte> tensor, std::uint32_t rank, std::uint64_t iteration, std::uint64_t first = 0) const;
  [[nodiscard]] Verdict check(std::span<const std::byte> tensor, std::uint64_t iteration) const;

 private:
  [[nodiscard]] std::uint64_t bits(std::uint32_t rank, std::uint64_t iteration, std::uint64_t element) const;

  std::uint64_t seed_;
  std::uint32_t world_size_;
  DType dtype_;
  ReduceOp op_;
};

}  // namespace netsum::app
