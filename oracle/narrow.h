// Floats of 16 bits, and the sums of them, to the bit: docs/numerics.md, "16 bits". In scalar code of its own.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "netsum/types.h"

namespace netsum::oracle {

// Without branches: the benchmark widens whole tensors.
[[nodiscard]] inline float from_float16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t word = magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : std::bit_cast<std::uint32_t>(finite);
  return std::bit_cast<float>(word | sign);
}
[[nodiscard]] inline float from_bfloat16(std::uint16_t half) {
  return std::bit_cast<float>(std::uint32_t{half} << 16);
}
[[nodiscard]] inline double narrow_value(DType dtype, std::uint16_t bits) {
  return static_cast<double>(dtype == DType::float16 ? from_float16(bits) : from_bfloat16(bits));
}

// To nearest, ties to even; all NaN are one, without a sign.
[[nodiscard]] std::uint16_t nearest_narrow(DType dtype, double value);
// As a float32 travels: a finite value stays finite.
[[nodiscard]] std::uint16_t narrow_on_wire(DType dtype, double value);
// float16: exactly. bfloat16: in float32, in rank order, and in double if that overflows. Divided, then rounded.
[[nodiscard]] std::uint16_t narrow_sum(DType dtype, std::span<const std::uint16_t> values, std::uint32_t divisor);
// In a tree: both exactly, rounded to double, divided, then rounded.
[[nodiscard]] std::uint16_t narrow_sum_exactly(DType dtype, std::span<const std::uint16_t> values, std::uint32_t divisor);
// The double that is nearest to the exact sum.
[[nodiscard]] double nearest_sum(std::span<const double> values);

}  // namespace netsum::oracle
