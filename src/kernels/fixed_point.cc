// Floats to block fixed point and back; docs/numerics.md derives every constant here.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fixed_point.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "kernels/nearest-inl.h"

#ifndef NETSUM_FIXED_POINT_SCALES
#define NETSUM_FIXED_POINT_SCALES
namespace netsum::kernels {

inline constexpr std::uint32_t exponent_mask = 0x7f800000;

// The limit for 128 ranks. With up to 128, no value that a block's exponent allows is clamped (docs/numerics.md).
inline constexpr std::int32_t least_unreached_limit = std::numeric_limits<std::int32_t>::max() / 128;

// 2^shift as one normal float, or two if it is out of a float's range. Products with block elements stay exact, because the
// elements of such a block are small (docs/numerics.md, "Scaling").
struct Scale {
  float first, second;
};
inline Scale scale_of(int shift) {
  const auto power = [](int exponent) { return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23); };
  const int first = std::clamp(shift, -126, 126);
  return {power(first), power(shift - first)};
}

}  // namespace netsum::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;

// Full vectors of [0, count) through `body(at)`, then the rest through a padded copy: `body` sees whole vectors only.
template <class Body, class Tail>
HWY_INLINE void for_vectors(std::size_t count, Body body, Tail tail) {
  const std::size_t lanes = hn::Lanes(F());
  constexpr std::size_t at_once = std::max<std::size_t>(1, 32 / hn::MaxLanes(F()));  // two cache lines: loops cost AVX2 most
  std::size_t i = 0;
  for (; i + at_once * lanes <= count; i += at_once * lanes) {
    for (std::size_t k = 0; k < at_once; ++k) body(i + k * lanes);
  }
  for (; i + lanes <= count; i += lanes) body(i);
  if (i < count) tail(i, count - i);
}

std::uint32_t LargestExponentBits(const float* values, std::size_t count) {
  const F f;
  const U u;
  const std::size_t lanes = hn::Lanes(f);
  const auto mask = hn::Set(u, exponent_mask);
  const auto exponents = [&](std::size_t i) { return hn::And(mask, hn::BitCast(u, hn::LoadU(f, values + i))); };
  auto a = hn::Zero(u), b = a, c = a, d = a;
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Max(a, exponents(i));
    b = hn::Max(b, exponents(i + lanes));
    c = hn::Max(c, exponents(i + 2 * lanes));
    d = hn::Max(d, exponents(i + 3 * lanes));
  }
  for (; i + lanes <= count; i += lanes) a = hn::Max(a, exponents(i));
  std::uint32_t rest = 0;
  for (; i < count; ++i) rest = std::max(rest, std::bit_cast<std::uint32_t>(values[i]) & exponent_mask);
  return std::max(rest, hn::GetLane(hn::MaxOfLanes(u, hn::Max(hn::Max(a, b), hn::Max(c, d)))));
}

std::uint32_t LargestFiniteExponentBits(const float* values, std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]) & exponent_mask;
    if (bits != exponent_mask) largest = std::max(largest, bits);
  }
  return largest;
}

std::size_t CountNonzeroUpTo(const float* values, std::size_t count, std::uint32_t most) {
  const F f;
  const U u;
  // A nonzero magnitude's bits, less one, are below `most`; those of 0 wrap beyond it.
  const auto magnitude = hn::Set(u, 0x7fffffff), one = hn::Set(u, 1), end = hn::Set(u, most);
  const std::size_t lanes = hn::Lanes(f);
  std::size_t found = 0, i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto less_one = hn::Sub(hn::And(magnitude, hn::BitCast(u, hn::LoadU(f, values + i))), one);
    found += hn::CountTrue(u, hn::Lt(less_one, end));
  }
  for (; i < count; ++i) found += (std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffff) - 1 < most;
  return found;
}

// payload[i] = convert(values[i]), vector by vector.
template <class Convert>
HWY_INLINE void to_words(std::byte* payload, const float* values, std::size_t count, const Convert& convert) {
  const F f;
  const I i32;
  auto* out = reinterpret_cast<std::int32_t*>(payload);  // any alignment: StoreU and memcpy only
  for_vectors(
      count, [&](std::size_t i) { hn::StoreU(convert(hn::LoadU(f, values + i)), i32, out + i); },
      [&](std::size_t i, std::size_t n) {
        HWY_ALIGN float in[hn::MaxLanes(f)] = {};
        HWY_ALIGN std::int32_t words[hn::MaxLanes(i32)];
        std::copy_n(values + i, n, in);
        hn::Store(convert(hn::Load(f, in)), i32, words);
        std::memcpy(payload + i * 4, words, n * 4);
      });
}

bool Quantize(std::byte* payload, const float* values, std::size_t count, Scale scale, std::int32_t limit) {
  const F f;
  const I i32;
  const U u;
  const auto most = hn::Set(i32, limit), least = hn::Set(i32, -limit);
  const auto first = hn::Set(f, scale.first), second = hn::Set(f, scale.second);
  const auto mask = hn::Set(u, exponent_mask);
  auto seen = hn::Zero(u);
  to_words(payload, values, count, [&](auto v) {
    const auto exponent = hn::And(mask, hn::BitCast(u, v));
    seen = hn::Max(seen, exponent);
    const auto finite = hn::IfThenElseZero(hn::RebindMask(f, hn::Ne(exponent, mask)), v);
    const auto rounded = hn::NearestInt(hn::Mul(hn::Mul(finite, first), second));
    return hn::Max(least, hn::Min(most, rounded));
  });
  return hn::GetLane(hn::MaxOfLanes(u, seen)) == exponent_mask;
}

// Without a check for values that are not finite, and with one product where that is exact.
void QuantizeFinite(std::byte* payload, const float* values, std::size_t count, Scale scale, std::int32_t limit) {
  const F f;
  const I i32;
  const auto most = hn::Set(i32, limit), least = hn::Set(i32, -limit);
  const auto first = hn::Set(f, scale.first), second = hn::Set(f, scale.second);
  const auto clamp = [&](auto v) { return hn::Max(least, hn::Min(most, nearest_in_range(v))); };
  if (scale.second != 1.0F) {
    to_words(payload, values, count, [&](auto v) { return clamp(hn::Mul(hn::Mul(v, first), second)); });
  } else if (limit < least_unreached_limit) {
    to_words(payload, values, count, [&](auto v) { return clamp(hn::Mul(v, first)); });
  } else {
    to_words(payload, values, count, [&](auto v) { return nearest_in_range(hn::Mul(v, first)); });
  }
}

// One rounding, that of int32 to float: 2^-shift times a nonzero integer is normal while shift <= 126.
void DequantizeNormal(float* values, const std::byte* payload, std::size_t count, float scale) {
  const F f;
  const I i32;
  const auto by = hn::Set(f, scale);
  const auto convert = [&](auto words) { return hn::Mul(hn::ConvertTo(f, words), by); };
  const auto* in = reinterpret_cast<const std::int32_t*>(payload);  // any alignment: LoadU and memcpy only
  for_vectors(
      count, [&](std::size_t i) { hn::StoreU(convert(hn::LoadU(i32, in + i)), f, values + i); },
      [&](std::size_t i, std::size_t n) {
        HWY_ALIGN std::int32_t words[hn::MaxLanes(i32)] = {};
        HWY_ALIGN float out[hn::MaxLanes(f)];
        std::memcpy(words, payload + i * 4, n * 4);
        hn::Store(convert(hn::Load(i32, words)), f, out);
        std::copy_n(out, n, values + i);
      });
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

HWY_EXPORT(LargestExponentBits);
HWY_EXPORT(LargestFiniteExponentBits);
HWY_EXPORT(CountNonzeroUpTo);
HWY_EXPORT(Quantize);
HWY_EXPORT(QuantizeFinite);
HWY_EXPORT(DequantizeNormal);

constexpr std::uint32_t bits_of_mask(std::size_t element) {
  return 1U << (element % 8);
}

[[nodiscard]] bool bit(const std::byte* mask, std::size_t element) {
  return (std::to_integer<std::uint32_t>(mask[element / 8]) & bits_of_mask(element)) != 0;
}

}  // namespace

BlockScan scan_block(const float* values, std::size_t count) {
  std::uint32_t bits = HWY_DYNAMIC_DISPATCH(LargestExponentBits)(values, count);
  const bool nonfinite = bits == exponent_mask;
  if (nonfinite) bits = HWY_DYNAMIC_DISPATCH(LargestFiniteExponentBits)(values, count);
  return {static_cast<std::uint8_t>(bits >> 23), nonfinite};
}

std::uint8_t largest_exponent(const float* values, std::size_t count) {
  return scan_block(values, count).exponent;
}

FixedPoint fixed_point(std::uint8_t block_exponent, std::uint32_t world_size) {
  const auto ranks_log = static_cast<int>(std::bit_width(world_size - 1));  // ceil(log2)
  return {31 - ranks_log - (int{block_exponent} - exponent_bias),
          static_cast<std::int32_t>(std::uint32_t{std::numeric_limits<std::int32_t>::max()} / world_size)};
}

float largest_to_zero(FixedPoint format) {
  return std::ldexp(1.0F, -format.shift - 1);
}

std::size_t count_nonzero_up_to(const float* values, std::size_t count, float most) {
  return HWY_DYNAMIC_DISPATCH(CountNonzeroUpTo)(values, count, std::bit_cast<std::uint32_t>(most));
}

bool quantize(std::byte* payload, const float* values, std::size_t count, FixedPoint format) {
  return HWY_DYNAMIC_DISPATCH(Quantize)(payload, values, count, scale_of(format.shift), format.limit);
}

void quantize_finite(std::byte* payload, const float* values, std::size_t count, FixedPoint format) {
  HWY_DYNAMIC_DISPATCH(QuantizeFinite)(payload, values, count, scale_of(format.shift), format.limit);
}

void dequantize(float* values, const std::byte* payload, std::size_t count, FixedPoint format, std::uint32_t divisor) {
  // Division by a power of two becomes part of the scale, without further rounding.
  const int shift = format.shift + (std::has_single_bit(divisor) ? std::countr_zero(divisor) : 0);
  if (std::has_single_bit(divisor) && shift <= 126) {
    HWY_DYNAMIC_DISPATCH(DequantizeNormal)(values, payload, count, scale_of(-shift).first);
  } else {
    dequantize_scaled(values, payload, count, std::ldexp(1.0, format.shift), divisor);
  }
}

void nonfinite_masks(std::byte* up, std::byte* down, const float* values, std::size_t count) {
  std::fill_n(up, (count + 7) / 8, std::byte{0});
  std::fill_n(down, (count + 7) / 8, std::byte{0});
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i])) continue;
    const bool nan = std::isnan(values[i]);
    if (nan || values[i] > 0) up[i / 8] |= static_cast<std::byte>(bits_of_mask(i));
    if (nan || values[i] < 0) down[i / 8] |= static_cast<std::byte>(bits_of_mask(i));
  }
}

void apply_nonfinite_masks(float* values, const std::byte* up, const std::byte* down, std::size_t count) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_up = bit(up, i), is_down = bit(down, i);
    if (is_up && is_down)
      values[i] = std::numeric_limits<float>::quiet_NaN();
    else if (is_up)
      values[i] = infinity;
    else if (is_down)
      values[i] = -infinity;
  }
}

}  // namespace netsum::kernels
#endif
