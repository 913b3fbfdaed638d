// Sums and averages of int32 and of floats, some hundred million elements a second: the benchmark judges 100 MB a rank and
// iteration. Inputs are exact in their type, and sums of up to 256 of them are exact in double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/mix.h"
#include "oracle/drawn.h"

namespace netsum::oracle {

[[nodiscard]] constexpr std::uint64_t drawn_key(std::uint64_t seed, std::uint32_t rank, std::uint64_t iteration) {
  return mix(mix(mix(seed + 0x9e3779b97f4a7c15u) + rank) + iteration);
}

// As Drawn's. Blocks of 256 elements have different magnitudes on different ranks.
void fill_sums(std::uint64_t seed, const Reduction& reduction, int magnitude, std::span<std::byte> tensor,
               std::uint32_t rank, std::uint64_t iteration);
[[nodiscard]] Verdict check_sums(std::uint64_t seed, const Reduction& reduction, int magnitude,
                                 std::span<const std::byte> tensor, std::uint64_t iteration);

}  // namespace netsum::oracle
