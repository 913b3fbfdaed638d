// Sums over buffered contributions, in their order: the same bits whatever the order in which they arrived.
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

// Returns whether all sums are finite; those that are not are left as they are in `out`.
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

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {
namespace {

using Sources = std::span<const std::byte* const>;

HWY_EXPORT(SumInt32);
HWY_EXPORT(SumFloats);

constexpr std::size_t block = 256;

// A sum that left float32 on the way may be finite in the end: it is formed once more, in double. value(source, i).
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

// Widened, added in float32, rounded once.
template <class Widen, class Narrow>
void sum_halves(std::byte* out, Sources sources, std::size_t count, std::uint32_t divisor, Widen widen, Narrow narrow) {
  std::array<std::uint16_t, block> halves;
  std::array<float, block> values, sums;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t part = std::min(block, count - begin);
    sums.fill(-0.0F);
    for (const std::byte* const source : sources) {
      std::memcpy(halves.data(), source + begin * 2, part * 2);
      widen(values.data(), halves.data(), part);
      for (std::size_t i = 0; i < part; ++i) sums[i] += values[i];
    }
    const auto value = [&](std::size_t source, std::size_t i) {
      std::uint16_t half = 0;
      std::memcpy(&half, sources[source] + (begin + i) * 2, 2);
      float wide = 0;
      widen(&wide, &half, 1);
      return wide;
    };
    for (std::size_t i = 0; i < part; ++i) {
      sums[i] = std::isfinite(sums[i]) ? sums[i] / static_cast<float>(divisor) : mended(sources.size(), i, divisor, value);
    }
    narrow(halves.data(), sums.data(), part);
    std::memcpy(out + begin * 2, halves.data(), part * 2);
  }
}

}  // namespace

void sum_in_order(DType dtype, std::byte* out, Sources sources, std::size_t count, std::uint32_t divisor) {
  switch (dtype) {
    case DType::float32:
      return sum_float32(out, sources, count, divisor);
    case DType::float16:
      return sum_halves(out, sources, count, divisor, from_float16, to_float16);
    case DType::bfloat16:
      return sum_halves(out, sources, count, divisor, from_bfloat16, to_bfloat16);
    case DType::int32:
      HWY_DYNAMIC_DISPATCH(SumInt32)(out, sources, count);
      if (divisor == 1) return;
      for (std::size_t i = 0; i < count; ++i) {
        const auto sum = static_cast<std::int32_t>(load_le<std::uint32_t>(out + i * 4));
        store_le(out + i * 4, static_cast<std::uint32_t>(static_cast<std::int32_t>(std::int64_t{sum} / divisor)));
      }
  }
}

}  // namespace netsum::kernels
#endif
