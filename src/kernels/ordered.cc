// Sums over buffered contributions, in a fixed order: the same bits whatever the order of arrival.
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ordered.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"

#ifndef NETSUM_ORDERED_SUMMED
#define NETSUM_ORDERED_SUMMED
namespace netsum::kernels {

struct Summed {
  std::size_t done;  // whole vectors
  bool finite;       // all these sums, before the division
};

}  // namespace netsum::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Sources = std::span<const std::byte* const>;

void SumInt32(std::byte* out, Sources sources, std::size_t count) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = [](const std::byte* p, std::size_t i) { return reinterpret_cast<const std::uint32_t*>(p) + i; };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto sum = hn::LoadU(d, at(sources[0], i));
    for (const std::byte* const source : sources.subspan(1)) sum = hn::Add(sum, hn::LoadU(d, at(source, i)));
    hn::StoreU(sum, d, reinterpret_cast<std::uint32_t*>(out) + i);
  }
  for (; i < count; ++i) {
    std::uint32_t sum = 0;
    for (const std::byte* const source : sources) sum += load_le<std::uint32_t>(source + i * 4);
    store_le(out + i * 4, sum);
  }
}

// Returns whether all sums are finite; `out` keeps those that are not.
bool SumFloats(std::byte* out, Sources sources, std::size_t count, float divisor) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto at = [](const std::byte* p, std::size_t i) { return reinterpret_cast<const float*>(p) + i; };
  auto* const to = reinterpret_cast<float*>(out);
  auto strange = hn::Zero(d);  // x - x is 0 if x is finite, and NaN if not
  std::size_t i = 0;
  if (divisor == 1) {
    for (; i + 4 * lanes <= count; i += 4 * lanes) {
      auto a = hn::LoadU(d, at(sources[0], i)), b = hn::LoadU(d, at(sources[0], i + lanes)),
           c = hn::LoadU(d, at(sources[0], i + 2 * lanes)), e = hn::LoadU(d, at(sources[0], i + 3 * lanes));
      for (const std::byte* const source : sources.subspan(1)) {
        a = hn::Add(a, hn::LoadU(d, at(source, i)));
        b = hn::Add(b, hn::LoadU(d, at(source, i + lanes)));
        c = hn::Add(c, hn::LoadU(d, at(source, i + 2 * lanes)));
        e = hn::Add(e, hn::LoadU(d, at(source, i + 3 * lanes)));
      }
      hn::StoreU(a, d, to + i);
      hn::StoreU(b, d, to + i + lanes);
      hn::StoreU(c, d, to + i + 2 * lanes);
      hn::StoreU(e, d, to + i + 3 * lanes);
      strange = hn::Add(strange, hn::Add(hn::Add(hn::Sub(a, a), hn::Sub(b, b)), hn::Add(hn::Sub(c, c), hn::Sub(e, e))));
    }
  }
  const auto by = hn::Set(d, divisor);
  for (; i + lanes <= count; i += lanes) {
    auto sum = hn::LoadU(d, at(sources[0], i));
    for (const std::byte* const source : sources.subspan(1)) sum = hn::Add(sum, hn::LoadU(d, at(source, i)));
    if (divisor != 1) sum = hn::Div(sum, by);
    hn::StoreU(sum, d, to + i);
    strange = hn::Add(strange, hn::Sub(sum, sum));
  }
  bool finite = hn::AllTrue(d, hn::Eq(strange, hn::Zero(d)));
  for (; i < count; ++i) {
    float sum = std::bit_cast<float>(load_le<std::uint32_t>(sources[0] + i * 4));
    for (const std::byte* const source : sources.subspan(1)) {
      sum += std::bit_cast<float>(load_le<std::uint32_t>(source + i * 4));
    }
    sum /= divisor;
    store_le(out + i * 4, std::bit_cast<std::uint32_t>(sum));
    finite &= std::isfinite(sum);
  }
  return finite;
}

using F = hn::ScalableTag<float>;
using H = hn::Rebind<std::uint16_t, F>;  // as many halves
using D = hn::Repartition<double, F>;    // half as many doubles

HWY_INLINE hn::Vec<F> WidenBrain(const std::byte* at) {
  const F f;
  const hn::RebindToUnsigned<F> u;
  const auto halves = hn::LoadU(H(), reinterpret_cast<const std::uint16_t*>(at));
  return hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(u, halves)));
}

HWY_INLINE hn::Vec<F> WidenHalf(const std::byte* at) {
  const F f;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const hn::Rebind<hwy::float16_t, F> h;
  return hn::PromoteTo(f, hn::LoadU(h, reinterpret_cast<const hwy::float16_t*>(at)));
#else
  // halves.cc has the reason.
  const hn::RebindToUnsigned<F> u;
  const auto halves = hn::PromoteTo(u, hn::LoadU(H(), reinterpret_cast<const std::uint16_t*>(at)));
  const auto magnitude = hn::And(halves, hn::Set(u, 0x7fffU));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(halves, magnitude));
  const auto finite = hn::BitCast(u, hn::Mul(hn::BitCast(f, hn::ShiftLeft<13>(magnitude)), hn::Set(f, 0x1p112F)));
  const auto special = hn::Or(hn::Set(u, 0x7f800000U), hn::ShiftLeft<13>(hn::And(magnitude, hn::Set(u, 0x3ffU))));
  const auto is_special = hn::Gt(magnitude, hn::Set(u, 0x7bffU));
  return hn::BitCast(f, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
#endif
}

// Sums the halves from `begin` on.
template <class Widen>
HWY_INLINE Summed SumWidened(float* out, Sources sources, std::size_t begin, std::size_t count, float divisor, Widen widen) {
  const F f;
  const std::size_t lanes = hn::Lanes(f);
  const auto by = hn::Set(f, divisor);
  auto strange = hn::Zero(f);  // x - x is 0 if x is finite, and NaN if not
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const std::size_t at = (begin + i) * 2, next = at + lanes * 2;
    auto a = widen(sources[0] + at), b = widen(sources[0] + next);
    for (const std::byte* const source : sources.subspan(1)) {
      a = hn::Add(a, widen(source + at));
      b = hn::Add(b, widen(source + next));
    }
    strange = hn::Add(strange, hn::Add(hn::Sub(a, a), hn::Sub(b, b)));
    hn::StoreU(divisor == 1 ? a : hn::Div(a, by), f, out + i);
    hn::StoreU(divisor == 1 ? b : hn::Div(b, by), f, out + i + lanes);
  }
  return {i, hn::AllTrue(f, hn::Eq(strange, hn::Zero(f)))};
}

Summed SumHalvesInOrder(float* out, Sources sources, std::size_t begin, std::size_t count, float divisor) {
  return SumWidened(out, sources, begin, count, divisor, [](const std::byte* at) HWY_ATTR { return WidenHalf(at); });
}

Summed SumBrains(float* out, Sources sources, std::size_t begin, std::size_t count, float divisor) {
  return SumWidened(out, sources, begin, count, divisor, [](const std::byte* at) HWY_ATTR { return WidenBrain(at); });
}

// To the nearest float16, ties to even, still as a double: adding and subtracting 1.5 * 2^52 units of the last place rounds
// to a unit, which below 2^-14 is that of 2^-14. Beyond 65504 the grid goes on.
HWY_INLINE hn::Vec<D> RoundToHalf(hn::Vec<D> value) {
  const D d;
  const hn::RebindToUnsigned<D> u;
  const auto power = hn::BitCast(d, hn::And(hn::BitCast(u, value), hn::Set(u, 0x7ff0000000000000U)));  // 2^e; inf for NaN
  const auto bounded = hn::Min(hn::Max(power, hn::Set(d, 0x1p-14)), hn::Set(d, 0x1p30));
  const auto magic = hn::Mul(bounded, hn::Set(d, 0x1.8p42));
  const auto rounded = hn::CopySign(hn::Sub(hn::Add(value, magic), magic), value);
  return hn::IfThenElse(hn::IsNaN(value), hn::Set(d, std::numeric_limits<double>::quiet_NaN()), rounded);
}

// Sums of halves are exact in double: multiples of 2^-24 below 2^24. Returns the number of elements in whole vectors.
#if HWY_TARGET == HWY_SCALAR  // whose vectors have no halves
std::size_t SumHalvesExactly(float*, Sources, std::size_t, std::size_t, double) {
  return 0;
}
#else
std::size_t SumHalvesExactly(float* out, Sources sources, std::size_t begin, std::size_t count, double divisor) {
  const F f;
  const D d;
  const hn::Half<F> half;
  const std::size_t lanes = hn::Lanes(f);
  const auto by = hn::Set(d, divisor);
  const auto finished = [&](auto sum)
                            HWY_ATTR { return hn::DemoteTo(half, RoundToHalf(divisor == 1 ? sum : hn::Div(sum, by))); };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const std::size_t at = (begin + i) * 2;
    const auto first = WidenHalf(sources[0] + at);
    auto low = hn::PromoteTo(d, hn::LowerHalf(half, first)), high = hn::PromoteTo(d, hn::UpperHalf(half, first));
    for (const std::byte* const source : sources.subspan(1)) {
      const auto next = WidenHalf(source + at);
      low = hn::Add(low, hn::PromoteTo(d, hn::LowerHalf(half, next)));
      high = hn::Add(high, hn::PromoteTo(d, hn::UpperHalf(half, next)));
    }
    hn::StoreU(hn::Combine(f, finished(high), finished(low)), f, out + i);
  }
  return i;
}
#endif

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

using Sources = std::span<const std::byte* const>;

HWY_EXPORT(SumInt32);
HWY_EXPORT(SumFloats);
HWY_EXPORT(SumHalvesInOrder);
HWY_EXPORT(SumBrains);
HWY_EXPORT(SumHalvesExactly);

constexpr std::size_t block = 256;

// A sum that left float32 on the way may be finite in the end, so it is computed again in double. value(source, i).
template <class Value>
float mended(std::size_t sources, std::size_t i, std::uint32_t divisor, const Value& value) {
  double sum = 0;
  for (std::size_t source = 0; source < sources; ++source) sum += static_cast<double>(value(source, i));
  // Which of two NaNs an addition keeps is the compiler's choice.
  return std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(sum / divisor);
}

void sum_float32(std::byte* out, Sources sources, std::size_t count, std::uint32_t divisor) {
  if (HWY_DYNAMIC_DISPATCH(SumFloats)(out, sources, count, static_cast<float>(divisor))) return;
  const auto value = [&](std::size_t source, std::size_t i) {
    return std::bit_cast<float>(load_le<std::uint32_t>(sources[source] + i * 4));
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isfinite(std::bit_cast<float>(load_le<std::uint32_t>(out + i * 4)))) continue;
    store_le(out + i * 4, std::bit_cast<std::uint32_t>(mended(sources.size(), i, divisor, value)));
  }
}

[[nodiscard]] std::uint16_t half_at(const std::byte* source, std::size_t i) {
  std::uint16_t half = 0;
  std::memcpy(&half, source + i * 2, 2);
  return half;
}

// Per block: `sum(sums, begin, part)` fills floats, which are then rounded to 16 bits.
template <class Sum, class Narrow>
void by_blocks(std::byte* out, std::size_t count, Sum sum, Narrow narrow) {
  std::array<float, block> sums;
  std::array<std::uint16_t, block> halves;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t part = std::min(block, count - begin);
    sum(sums.data(), begin, part);
    narrow(halves.data(), sums.data(), part);
    std::memcpy(out + begin * 2, halves.data(), part * 2);
  }
}

// Widened, added in float32, rounded once. `vectors` handles whole vectors.
template <class Vectors, class Widen, class Narrow>
void sum_halves(std::byte* out, Sources sources, std::size_t count, std::uint32_t divisor, Vectors vectors, Widen widen,
                Narrow narrow) {
  const auto value = [&](std::size_t source, std::size_t i) {
    const std::uint16_t half = half_at(sources[source], i);
    float wide = 0;
    widen(&wide, &half, 1);
    return wide;
  };
  const auto by = static_cast<float>(divisor);
  const auto sum = [&](float* sums, std::size_t begin, std::size_t part) {
    Summed summed = vectors(sums, begin, part, by);
    for (; summed.done < part; ++summed.done) {
      float& added = sums[summed.done] = value(0, begin + summed.done);
      for (std::size_t source = 1; source < sources.size(); ++source) added += value(source, begin + summed.done);
      summed.finite &= std::isfinite(added);
      added /= by;
    }
    if (summed.finite) return;
    for (std::size_t i = 0; i < part; ++i) {
      if (!std::isfinite(sums[i])) sums[i] = mended(sources.size(), begin + i, divisor, value);
    }
  };
  by_blocks(out, count, sum, narrow);
}

// As RoundToHalf() above.
[[nodiscard]] float rounded_to_half(double value) {
  if (std::isnan(value)) return std::numeric_limits<float>::quiet_NaN();
  const double power = std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) & 0x7ff0000000000000U);
  const double magic = std::clamp(power, 0x1p-14, 0x1p30) * 0x1.8p42;
  return static_cast<float>(std::copysign(value + magic - magic, value));
}

// For tensors of a few elements.
void sum_in_double(std::byte* out, Sources sources, std::size_t count, std::uint32_t divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    double sum = -0.0;
    for (const std::byte* const source : sources) {
      sum += static_cast<double>(std::bit_cast<float>(load_le<std::uint32_t>(source + i * 4)));
    }
    const float result = std::isnan(sum) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(sum / divisor);
    store_le(out + i * 4, std::bit_cast<std::uint32_t>(result));
  }
}

}  // namespace

void sum_in_order(DType dtype, std::byte* out, Sources sources, std::size_t count, std::uint32_t divisor) {
  switch (dtype) {
    case DType::float32:
      return sum_float32(out, sources, count, divisor);
    case DType::float16:
      return sum_halves(
          out, sources, count, divisor,
          [&](float* sums, std::size_t begin, std::size_t part, float by) {
            return HWY_DYNAMIC_DISPATCH(SumHalvesInOrder)(sums, sources, begin, part, by);
          },
          from_float16, to_float16);
    case DType::bfloat16:
      return sum_halves(
          out, sources, count, divisor,
          [&](float* sums, std::size_t begin, std::size_t part, float by) {
            return HWY_DYNAMIC_DISPATCH(SumBrains)(sums, sources, begin, part, by);
          },
          from_bfloat16, to_bfloat16);
    default:
      NETSUM_CHECK(dtype == DType::int32);
      HWY_DYNAMIC_DISPATCH(SumInt32)(out, sources, count);
      if (divisor != 1) divide_int32(reinterpret_cast<std::int32_t*>(out), count, divisor);
  }
}

void sum_gathered(DType dtype, std::byte* out, Sources sources, std::size_t count, std::uint32_t divisor) {
  if (dtype == DType::float32) return sum_in_double(out, sources, count, divisor);
  if (dtype != DType::float16) return sum_in_order(dtype, out, sources, count, divisor);
  const auto sum = [&](float* sums, std::size_t begin, std::size_t part) {
    std::size_t i = HWY_DYNAMIC_DISPATCH(SumHalvesExactly)(sums, sources, begin, part, divisor);
    for (; i < part; ++i) {
      double exact = -0.0;
      for (const std::byte* const source : sources) {
        const std::uint16_t half = half_at(source, begin + i);
        float wide = 0;
        from_float16(&wide, &half, 1);
        exact += static_cast<double>(wide);
      }
      sums[i] = rounded_to_half(exact / divisor);
    }
  };
  by_blocks(out, count, sum, to_float16);
}

}  // namespace netsum::kernels
#endif
