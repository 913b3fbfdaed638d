// Sums all ranks' values at once, for shared memory: quantizes, adds and dequantizes in registers, with the same bits as the
// separate steps (docs/numerics.md).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/whole_sum.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "kernels/nearest-inl.h"
#include "kernels/quotient-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;

// The largest exponent bits of a block over all sources, those of NaN and infinity included.
std::uint32_t LargestExponentBitsOfAll(const float* const* sources, std::size_t ranks, std::size_t begin,
                                       std::size_t count) {
  const F f;
  const U u;
  const std::size_t lanes = hn::Lanes(f);
  const auto mask = hn::Set(u, 0x7f800000);
  auto largest = hn::Zero(u), more = hn::Zero(u);
  std::uint32_t rest = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const float* const values = sources[rank] + begin;
    std::size_t i = 0;
    for (; i + 2 * lanes <= count; i += 2 * lanes) {
      largest = hn::Max(largest, hn::And(mask, hn::BitCast(u, hn::LoadU(f, values + i))));
      more = hn::Max(more, hn::And(mask, hn::BitCast(u, hn::LoadU(f, values + i + lanes))));
    }
    for (; i < count; ++i) rest = std::max(rest, std::bit_cast<std::uint32_t>(values[i]) & 0x7f800000);
  }
  return std::max(rest, hn::GetLane(hn::MaxOfLanes(u, hn::Max(largest, more))));
}

// Sums of up to 128 ranks need no clamp: no value reaches the limit (docs/numerics.md). back(sum): as floats.
template <bool clamped, class Back>
HWY_INLINE void SumBlock(float* out, float* copy, const float* const* sources, std::size_t ranks, std::size_t begin,
                         std::size_t count, float there, std::int32_t limit, const Back& back) {
  const F f;
  const I i32;
  const std::size_t lanes = hn::Lanes(f);
  const auto scale = hn::Set(f, there);
  [[maybe_unused]] const auto most = hn::Set(i32, limit), least = hn::Set(i32, -limit);
  const auto quantized = [&](auto v) {
    const auto rounded = nearest_in_range(hn::Mul(v, scale));
    if constexpr (clamped) {
      return hn::Max(least, hn::Min(most, rounded));
    } else {
      return rounded;
    }
  };
  const auto put = [&](auto sum, std::size_t at) {
    const auto value = back(sum);
    hn::StoreU(value, f, out + at);
    if (copy != nullptr) hn::StoreU(value, f, copy + at);
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    auto a = hn::Zero(i32), b = a, c = a, d = a;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const float* const values = sources[rank] + begin + i;
      a = hn::Add(a, quantized(hn::LoadU(f, values)));
      b = hn::Add(b, quantized(hn::LoadU(f, values + lanes)));
      c = hn::Add(c, quantized(hn::LoadU(f, values + 2 * lanes)));
      d = hn::Add(d, quantized(hn::LoadU(f, values + 3 * lanes)));
    }
    put(a, begin + i);
    put(b, begin + i + lanes);
    put(c, begin + i + 2 * lanes);
    put(d, begin + i + 3 * lanes);
  }
  for (; i < count; i += lanes) {
    const std::size_t n = std::min(lanes, count - i);
    HWY_ALIGN float padded[hn::MaxLanes(f)] = {};
    auto sum = hn::Zero(i32);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::memcpy(padded, sources[rank] + begin + i, n * 4);
      sum = hn::Add(sum, quantized(hn::Load(f, padded)));
    }
    hn::Store(back(sum), f, padded);
    std::memcpy(out + begin + i, padded, n * 4);
    if (copy != nullptr) std::memcpy(copy + begin + i, padded, n * 4);
  }
}

template <class Back>
HWY_INLINE void SumBlockOf(float* out, float* copy, const float* const* sources, std::size_t ranks, std::size_t begin,
                           std::size_t count, float there, std::int32_t limit, const Back& back) {
  if (ranks <= 128) {
    SumBlock<false>(out, copy, sources, ranks, begin, count, there, limit, back);
  } else {
    SumBlock<true>(out, copy, sources, ranks, begin, count, there, limit, back);
  }
}

// `back`: the power of two that a sum is multiplied by.
void SumFixedPoint(float* out, float* copy, const float* const* sources, std::size_t ranks, std::size_t begin,
                   std::size_t count, float there, float back, std::int32_t limit) {
  const F f;
  const auto inverse = hn::Set(f, back);
  SumBlockOf(out, copy, sources, ranks, begin, count, there, limit,
             [=](auto sum) HWY_ATTR { return hn::Mul(hn::ConvertTo(f, sum), inverse); });
}

void AverageFixedPoint(float* out, float* copy, const float* const* sources, std::size_t ranks, std::size_t begin,
                       std::size_t count, float there, std::int32_t limit, double divisor) {
  with_quotient(divisor, [=](auto quotient) HWY_ATTR {
    SumBlockOf(out, copy, sources, ranks, begin, count, there, limit,
               [=](auto sum) HWY_ATTR { return divided_to_floats(sum, quotient); });
  });
}

void SumIntegers(std::int32_t* out, std::int32_t* copy, const std::int32_t* const* sources, std::size_t ranks,
                 std::size_t count) {
  const I i32;
  const std::size_t lanes = hn::Lanes(i32);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto sum = hn::LoadU(i32, sources[0] + i);
    for (std::size_t rank = 1; rank < ranks; ++rank) sum = hn::Add(sum, hn::LoadU(i32, sources[rank] + i));
    hn::StoreU(sum, i32, out + i);
    if (copy != nullptr) hn::StoreU(sum, i32, copy + i);
  }
  for (; i < count; ++i) {
    std::uint32_t sum = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) sum += static_cast<std::uint32_t>(sources[rank][i]);
    out[i] = static_cast<std::int32_t>(sum);
    if (copy != nullptr) copy[i] = out[i];
  }
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"

namespace netsum::kernels {
namespace {

HWY_EXPORT(LargestExponentBitsOfAll);
HWY_EXPORT(SumFixedPoint);
HWY_EXPORT(AverageFixedPoint);
HWY_EXPORT(SumIntegers);

constexpr std::size_t block = block_elements;
constexpr std::size_t most_ranks = 256;
constexpr std::uint32_t nonfinite_bits = 0x7f800000;

float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

using Sources = std::span<const std::byte* const>;

// Elements [begin, begin + count) of one rank as floats: in place, or widened into scratch.
const float* floats_of(DType dtype, const std::byte* source, std::size_t begin, std::size_t count, float* scratch) {
  const std::byte* const from = source + begin * bytes_of(dtype);
  if (dtype == DType::float32) return reinterpret_cast<const float*>(from);
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(from);
  dtype == DType::float16 ? from_float16(scratch, halves, count) : from_bfloat16(scratch, halves, count);
  return scratch;
}

// The largest exponent of a block over all sources, and whether any element is not finite.
BlockScan scan_all(DType dtype, Sources sources, std::size_t begin, std::size_t count, float* scratch) {
  BlockScan scan{0, false};
  for (const std::byte* const source : sources) {
    const BlockScan one = scan_block(floats_of(dtype, source, begin, count, scratch), count);
    scan = {std::max(scan.exponent, one.exponent), scan.nonfinite || one.nonfinite};
  }
  return scan;
}

// One block of any floating type and any values, in the same steps as with packets.
void sum_block_in_steps(DType dtype, std::byte* out, std::byte* copy, Sources sources, std::size_t begin, std::size_t count,
                        std::uint32_t divisor) {
  const auto ranks = static_cast<std::uint32_t>(sources.size());
  std::array<float, block> scratch;
  const BlockScan scan = scan_all(dtype, sources, begin, count, scratch.data());
  const FixedPoint format = fixed_point(scan.exponent, ranks);
  std::array<std::byte, block * 4> sum{}, addend;
  std::array<std::byte, block / 8> up{}, down{}, also_up, also_down;
  for (const std::byte* const source : sources) {
    const float* const values = floats_of(dtype, source, begin, count, scratch.data());
    static_cast<void>(quantize(addend.data(), values, count, format));
    add_int32(sum.data(), addend.data(), count);
    if (!scan.nonfinite) continue;
    nonfinite_masks(also_up.data(), also_down.data(), values, count);
    or_bytes(up.data(), also_up.data(), (count + 7) / 8);
    or_bytes(down.data(), also_down.data(), (count + 7) / 8);
  }
  dequantize(scratch.data(), sum.data(), count, format, divisor);
  if (scan.nonfinite) apply_nonfinite_masks(scratch.data(), up.data(), down.data(), count);
  std::array<std::uint16_t, block> halves;
  const void* result = scratch.data();
  if (dtype != DType::float32) {
    dtype == DType::float16 ? to_float16(halves.data(), scratch.data(), count)
                            : to_bfloat16(halves.data(), scratch.data(), count);
    result = halves.data();
  }
  const std::size_t width = bytes_of(dtype);
  std::memcpy(out + begin * width, result, count * width);
  if (copy != nullptr) std::memcpy(copy + begin * width, result, count * width);
}

void sum_floats(std::byte* out, std::byte* copy, Sources sources, std::size_t count, std::uint32_t divisor) {
  const auto ranks = static_cast<std::uint32_t>(sources.size());
  std::array<const float*, most_ranks> values;
  for (std::size_t rank = 0; rank < ranks; ++rank) values[rank] = reinterpret_cast<const float*>(sources[rank]);
  // Division by a power of two becomes part of the scale, without further rounding.
  const bool scaled = std::has_single_bit(divisor);
  const int divided = scaled ? std::countr_zero(divisor) : 0;
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t n = std::min(block, count - begin);
    const std::uint32_t bits = HWY_DYNAMIC_DISPATCH(LargestExponentBitsOfAll)(values.data(), ranks, begin, n);
    const FixedPoint format = fixed_point(static_cast<std::uint8_t>(bits >> 23), ranks);
    auto* const result = reinterpret_cast<float*>(out);
    auto* const again = reinterpret_cast<float*>(copy);
    if (bits == nonfinite_bits || format.shift + divided > 126) {
      sum_block_in_steps(DType::float32, out, copy, sources, begin, n, divisor);
    } else if (scaled) {
      HWY_DYNAMIC_DISPATCH(SumFixedPoint)
      (result, again, values.data(), ranks, begin, n, power_of_two(format.shift), power_of_two(-format.shift - divided),
       format.limit);
    } else {
      HWY_DYNAMIC_DISPATCH(AverageFixedPoint)
      (result, again, values.data(), ranks, begin, n, power_of_two(format.shift), format.limit,
       std::ldexp(static_cast<double>(divisor), format.shift));
    }
  }
}

// float32 in 16 bits: narrows each rank's values, sums them, and widens the sums.
void sum_narrowed(DType narrow, std::byte* out, std::byte* copy, Sources sources, std::size_t count, std::uint32_t divisor) {
  constexpr std::size_t most = 64;  // so that all ranks' parts fit into L1
  std::array<std::array<std::uint16_t, most>, most_ranks> halves;
  std::array<const std::byte*, most_ranks> at;
  std::array<std::uint16_t, most> sums;
  std::array<float, most> floats;
  for (std::size_t begin = 0; begin < count; begin += most) {
    const std::size_t n = std::min(most, count - begin);
    for (std::size_t rank = 0; rank < sources.size(); ++rank) {
      const auto* const values = reinterpret_cast<const float*>(sources[rank]) + begin;
      to_narrow_wire(narrow, halves[rank].data(), values, n);
      at[rank] = reinterpret_cast<const std::byte*>(halves[rank].data());
    }
    sum_gathered(narrow, reinterpret_cast<std::byte*>(sums.data()), Sources(at.data(), sources.size()), n, divisor);
    narrow == DType::float16 ? from_float16(floats.data(), sums.data(), n) : from_bfloat16(floats.data(), sums.data(), n);
    std::memcpy(out + begin * 4, floats.data(), n * 4);
    if (copy != nullptr) std::memcpy(copy + begin * 4, floats.data(), n * 4);
  }
}

}  // namespace

std::size_t count_to_zero(DType dtype, Sources sources, Sources counted, std::size_t begin, std::size_t count) {
  NETSUM_CHECK(!sources.empty() && sources.size() <= most_ranks && count <= block);
  std::array<float, block> scratch;
  const BlockScan scan = scan_all(dtype, sources, begin, count, scratch.data());
  const float most = largest_to_zero(fixed_point(scan.exponent, static_cast<std::uint32_t>(sources.size())));
  std::size_t found = 0;
  for (const std::byte* const source : counted) {
    found += count_nonzero_up_to(floats_of(dtype, source, begin, count, scratch.data()), count, most);
  }
  return found;
}

void sum_all(DType dtype, std::byte* out, std::byte* copy, std::span<const std::byte* const> sources, std::size_t count,
             std::uint32_t divisor, DType travels) {
  NETSUM_CHECK(!sources.empty() && sources.size() <= most_ranks);
  if (travels != DType::int32) {
    if (dtype != travels) return sum_narrowed(travels, out, copy, sources, count, divisor);
    sum_gathered(travels, out, sources, count, divisor);
    if (copy != nullptr) std::memcpy(copy, out, count * bytes_of(dtype));
    return;
  }
  if (dtype == DType::float32) return sum_floats(out, copy, sources, count, divisor);
  if (dtype == DType::int32) {
    std::array<const std::int32_t*, most_ranks> values;
    for (std::size_t rank = 0; rank < sources.size(); ++rank) {
      values[rank] = reinterpret_cast<const std::int32_t*>(sources[rank]);
    }
    auto* const sum = reinterpret_cast<std::int32_t*>(out);
    HWY_DYNAMIC_DISPATCH(SumIntegers)
    (sum, divisor == 1 ? reinterpret_cast<std::int32_t*>(copy) : nullptr, values.data(), sources.size(), count);
    if (divisor == 1) return;
    divide_int32(sum, count, divisor);
    if (copy != nullptr) std::memcpy(copy, out, count * 4);
    return;
  }
  for (std::size_t begin = 0; begin < count; begin += block) {
    sum_block_in_steps(dtype, out, copy, sources, begin, std::min(block, count - begin), divisor);
  }
}

}  // namespace netsum::kernels
#endif
