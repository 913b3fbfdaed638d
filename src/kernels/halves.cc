// float16 and bfloat16. bfloat16 is vectorized by the compiler for every instruction set that Highway knows, and so is
// float16 where there are no instructions for it.
#include <bit>
#include <limits>

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/halves.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// x86 has instructions for float16 from AVX2 on (F16C); compilers find no vector code for AVX2 in the functions below.
#undef NETSUM_HALVES_IN_HARDWARE
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define NETSUM_HALVES_IN_HARDWARE 1
#else
#define NETSUM_HALVES_IN_HARDWARE 0
#endif

HWY_INLINE float from_half(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000U} << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  // Shifted into place, the exponent is 112 too small: a multiplication by 2^112 corrects that, for subnormals too.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special = 0x7f800000U | (magnitude & 0x3ffU) << 13 | (magnitude > 0x7c00U ? 0x400000U : 0U);  // quiet
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00U ? special : finite));
}

HWY_INLINE std::uint16_t to_half(float value) {
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

HWY_INLINE std::uint16_t to_brain(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);  // NaN, made quiet
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

#if NETSUM_HALVES_IN_HARDWARE
using F = hn::ScalableTag<float>;
using H = hn::Rebind<hwy::float16_t, F>;
#endif

void FromFloat16(float* HWY_RESTRICT values, const std::uint16_t* HWY_RESTRICT halves, std::size_t count) {
  std::size_t i = 0;
#if NETSUM_HALVES_IN_HARDWARE
  const F f;
  for (; i + hn::Lanes(f) <= count; i += hn::Lanes(f)) {
    hn::StoreU(hn::PromoteTo(f, hn::LoadU(H(), reinterpret_cast<const hwy::float16_t*>(halves) + i)), f, values + i);
  }
#endif
  for (; i < count; ++i) values[i] = from_half(halves[i]);
}

void ToFloat16(std::uint16_t* HWY_RESTRICT halves, const float* HWY_RESTRICT values, std::size_t count) {
  std::size_t i = 0;
#if NETSUM_HALVES_IN_HARDWARE
  const F f;
  for (; i + hn::Lanes(f) <= count; i += hn::Lanes(f)) {
    const auto value = hn::LoadU(f, values + i);
    const auto one_nan = hn::CopySign(hn::Set(f, std::numeric_limits<float>::quiet_NaN()), value);
    const auto half = hn::DemoteTo(H(), hn::IfThenElse(hn::IsNaN(value), one_nan, value));
    hn::StoreU(half, H(), reinterpret_cast<hwy::float16_t*>(halves) + i);
  }
#endif
  for (; i < count; ++i) halves[i] = to_half(values[i]);
}

void FromBfloat16(float* HWY_RESTRICT values, const std::uint16_t* HWY_RESTRICT halves, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = std::bit_cast<float>(std::uint32_t{halves[i]} << 16);
}

void ToBfloat16(std::uint16_t* HWY_RESTRICT halves, const float* HWY_RESTRICT values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) halves[i] = to_brain(values[i]);
}

// The largest finite value is the one before infinity.
void KeepFinite(std::uint16_t infinity, std::uint16_t* HWY_RESTRICT halves, const float* HWY_RESTRICT values,
                std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const bool finite = (std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffU) < 0x7f800000U;
    halves[i] = static_cast<std::uint16_t>(halves[i] - ((halves[i] & 0x7fffU) == infinity && finite ? 1 : 0));
  }
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {

HWY_EXPORT(FromFloat16);
HWY_EXPORT(ToFloat16);
HWY_EXPORT(FromBfloat16);
HWY_EXPORT(ToBfloat16);
HWY_EXPORT(KeepFinite);

void from_float16(float* values, const std::uint16_t* halves, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(FromFloat16)(values, halves, count);
}

void to_float16(std::uint16_t* halves, const float* values, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(ToFloat16)(halves, values, count);
}

void from_bfloat16(float* values, const std::uint16_t* halves, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(FromBfloat16)(values, halves, count);
}

void to_bfloat16(std::uint16_t* halves, const float* values, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(ToBfloat16)(halves, values, count);
}

void to_narrow_wire(DType travels, std::uint16_t* halves, const float* values, std::size_t count) {
  travels == DType::float16 ? to_float16(halves, values, count) : to_bfloat16(halves, values, count);
  HWY_DYNAMIC_DISPATCH(KeepFinite)(travels == DType::float16 ? 0x7c00 : 0x7f80, halves, values, count);
}

}  // namespace netsum::kernels
#endif
