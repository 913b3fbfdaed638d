// float16 and bfloat16. They travel as float32, so these run once per element and are left to the compiler's vectorizer.
#include <bit>

#include "kernels/kernels.h"

namespace netsum::kernels {
namespace {

float from_half(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000U} << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  // Shifted into place, the exponent is 112 too small: a multiplication by 2^112 mends that, for subnormals too.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special = 0x7f800000U | (magnitude & 0x3ffU) << 13;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00U ? special : finite));
}

std::uint16_t to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);   // NaN
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // rounds beyond 65504
  if (magnitude < 0x38800000U) {
    // Below the least normal: adding 0.5 rounds to a multiple of 2^-24, the subnormals' unit, in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | (rounded - (112U << 23)) >> 13);
}

std::uint16_t to_brain(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);  // NaN, made quiet
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

}  // namespace

void from_float16(float* values, const std::uint16_t* halves, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = from_half(halves[i]);
}

void to_float16(std::uint16_t* halves, const float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) halves[i] = to_half(values[i]);
}

void from_bfloat16(float* values, const std::uint16_t* halves, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = std::bit_cast<float>(std::uint32_t{halves[i]} << 16);
}

void to_bfloat16(std::uint16_t* halves, const float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) halves[i] = to_brain(values[i]);
}

}  // namespace netsum::kernels
