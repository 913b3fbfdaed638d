// Floats in blocks of 64 with an exponent each and 8 or 4 bits a value (docs/numerics.md, "8 bits"). Products are with
// powers of two, so exact, fused or not: the bits are the same with every instruction set.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/mix.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/blocks.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "kernels/nearest-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, 16>;
using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;
using I8 = hn::Rebind<std::int8_t, F>;
using I16 = hn::Rebind<std::int16_t, F>;
using U8 = hn::Rebind<std::uint8_t, F>;

// Values of so many bits. The least integer is no value.
constexpr std::int32_t most(int bits) {
  return (1 << (bits - 1)) - 1;
}
constexpr std::int32_t not_finite(int bits) {
  return -most(bits) - 1;
}
// Sums are in 2^13 times what values are in, so that none of 4,096 ranks' overflows on its way. Steps are normal floats
// there, too.
constexpr std::uint32_t headroom = 13, least_exponent = 7 + headroom, most_exponent = 254;

// The power of two that the block's largest finite value has is 64 steps, or 4 of 4 bits.
template <int bits>
HWY_INLINE float step_of(std::uint32_t exponent) {
  return std::bit_cast<float>((exponent + 2 - bits) << 23);
}
template <int bits>
HWY_INLINE float steps_per_unit(std::uint32_t exponent) {
  return std::bit_cast<float>((252 + bits - exponent) << 23);
}
// An exponent that nobody sends counts as the nearest that somebody does: a stranger's bytes make no infinite step.
HWY_INLINE std::uint32_t read_exponent(std::byte exponent) {
  return std::clamp(std::to_integer<std::uint32_t>(exponent), least_exponent, most_exponent);
}

struct Scan {
  std::uint32_t exponent;
  bool finite;  // all of them
};
// Of a whole block.
HWY_INLINE Scan scan(const float* HWY_RESTRICT values, std::uint32_t least) {
  const F f;
  const I integers;
  const auto infinite = hn::Set(integers, 0x7f800000);
  const auto magnitudes = [&](std::size_t i) { return hn::BitCast(integers, hn::Abs(hn::LoadU(f, values + i))); };
  auto largest = hn::Zero(integers);
  for (std::size_t i = 0; i < block_values; i += hn::Lanes(f)) largest = hn::Max(largest, magnitudes(i));
  const bool finite = hn::AllTrue(integers, hn::Lt(largest, infinite));
  if (!finite) {
    largest = hn::Zero(integers);
    for (std::size_t i = 0; i < block_values; i += hn::Lanes(f)) {
      const auto magnitude = magnitudes(i);
      largest = hn::Max(largest, hn::IfThenElseZero(hn::Lt(magnitude, infinite), magnitude));
    }
  }
  const auto bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(integers, largest)));
  return {std::max(bits >> 23, least), finite};
}

// A byte for each value of a block, from a counter, so that a repeat is the same to the bit: the finalizer "lowbias32" of
// 32-bit words, which are the words of `key` and a number in the block.
HWY_INLINE void draw(std::uint32_t* HWY_RESTRICT chances, std::uint64_t key) {
  const U words;
  static_assert(hn::MaxLanes(words) <= block_values / 4);
  for (std::size_t i = 0; i < block_values / 4; i += hn::Lanes(words)) {
    auto word = hn::Xor(hn::Mul(hn::Iota(words, static_cast<std::uint32_t>(i)), hn::Set(words, 0x9e3779b1U)),
                        hn::Set(words, static_cast<std::uint32_t>(key)));
    word = hn::Mul(hn::Xor(word, hn::ShiftRight<16>(word)), hn::Set(words, 0x7feb352dU));
    word = hn::Xor(hn::Mul(hn::Xor(word, hn::ShiftRight<15>(word)), hn::Set(words, 0x846ca68bU)),
                   hn::Set(words, static_cast<std::uint32_t>(key >> 32)));
    word = hn::Xor(word, hn::ShiftRight<16>(word));
    hn::Store(word, words, chances + i);
  }
}

// With chances, or to nearest even. A byte for each value. Chances are added to 256ths of a step, of which there are at most
// 2^15.
template <int bits, bool at_random>
HWY_INLINE void quantize_block(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, const Scan& found,
                               const std::uint32_t* HWY_RESTRICT drawn) {
  const F f;
  const I16 shorts;
  const auto* const chances = reinterpret_cast<const std::uint8_t*>(drawn);
  const auto per_unit = hn::Set(f, steps_per_unit<bits>(found.exponent) * (at_random ? 256 : 1));
  auto* const to = reinterpret_cast<std::int8_t*>(out);
  for (std::size_t i = 0; i < block_values; i += hn::Lanes(f)) {
    auto steps = hn::DemoteTo(shorts, nearest_in_range(hn::Mul(hn::LoadU(f, values + i), per_unit)));
    if constexpr (at_random) {
      const auto chance = hn::PromoteTo(shorts, hn::LoadU(U8(), chances + i));
      steps = hn::ShiftRight<8>(hn::SaturatedAdd(steps, chance));
    }
    // The conversion to bytes keeps the upper limit of 8 bits.
    steps = hn::Max(steps, hn::Set(shorts, -most(bits)));
    if constexpr (bits < 8) steps = hn::Min(steps, hn::Set(shorts, most(bits)));
    hn::StoreU(hn::DemoteTo(I8(), steps), I8(), to + i);
  }
  if (found.finite) return;
  for (std::size_t i = 0; i < block_values; ++i) {
    if (!std::isfinite(values[i])) to[i] = not_finite(bits);
  }
}

// 4 bits of two's complement from each of 64 bytes, the first of two in the lower bits; and the bytes again.
HWY_INLINE void pack_halves(std::byte* HWY_RESTRICT out, const std::byte* HWY_RESTRICT bytes) {
  for (std::size_t i = 0; i < block_values / 2; ++i) {
    out[i] = (bytes[2 * i] & std::byte{15}) | bytes[2 * i + 1] << 4;
  }
}
HWY_INLINE void unpack_halves(std::byte* HWY_RESTRICT bytes, const std::byte* HWY_RESTRICT halves) {
  auto* const values = reinterpret_cast<std::int8_t*>(bytes);
  for (std::size_t i = 0; i < block_values / 2; ++i) {
    const auto both = static_cast<std::int8_t>(halves[i]);
    values[2 * i] = static_cast<std::int8_t>(((both & 15) ^ 8) - 8);
    values[2 * i + 1] = static_cast<std::int8_t>(both >> 4);
  }
}

template <int bits>
HWY_INLINE bool all_finite(const std::byte* HWY_RESTRICT bytes) {
  const hn::CappedTag<std::int8_t, block_values> of;
  auto least = hn::Zero(of);
  for (std::size_t i = 0; i < block_values; i += hn::Lanes(of)) {
    least = hn::Min(least, hn::LoadU(of, reinterpret_cast<const std::int8_t*>(bytes) + i));
  }
  return hn::AllTrue(of, hn::Gt(least, hn::Set(of, not_finite(bits))));
}

template <int bits, bool finite>
HWY_INLINE auto read_values(const std::byte* HWY_RESTRICT from, float step) {
  const F f;
  const auto steps = hn::PromoteTo(I(), hn::LoadU(I8(), reinterpret_cast<const std::int8_t*>(from)));
  const auto values = hn::Mul(hn::ConvertTo(f, steps), hn::Set(f, step));
  if constexpr (finite) {
    return values;
  } else {
    return hn::IfThenElse(hn::RebindMask(f, hn::Eq(steps, hn::Set(I(), not_finite(bits)))), hn::NaN(f), values);
  }
}
// body(index of the first, values) of a block's bytes.
template <int bits, class Body>
HWY_INLINE void for_values(const std::byte* HWY_RESTRICT bytes, float step, const Body& body) {
  const F f;
  if (all_finite<bits>(bytes)) {
    for (std::size_t i = 0; i < block_values; i += hn::Lanes(f)) body(i, read_values<bits, true>(bytes + i, step));
  } else {
    for (std::size_t i = 0; i < block_values; i += hn::Lanes(f)) body(i, read_values<bits, false>(bytes + i, step));
  }
}

// A byte for each value of a block whose values take so many bytes: where they are, or in `whole`, which is zero behind
// them.
template <int bits>
HWY_INLINE const std::byte* bytes_of_values(const std::byte* HWY_RESTRICT from, std::size_t bytes,
                                            std::byte* HWY_RESTRICT whole) {
  if constexpr (bits == 8) {
    return bytes < block_values ? static_cast<const std::byte*>(std::memcpy(whole, from, bytes)) : from;
  } else {
    std::byte halves[block_values / 2];
    if (bytes < sizeof(halves)) {
      std::memset(halves, 0, sizeof(halves));
      from = static_cast<const std::byte*>(std::memcpy(halves, from, bytes));
    }
    unpack_halves(whole, from);
    return whole;
  }
}

template <int bits>
HWY_INLINE void to_blocks(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, std::size_t count,
                          std::uint64_t key, std::uint64_t first) {
  HWY_ALIGN float padded[block_values] = {};
  HWY_ALIGN std::uint32_t chances[block_values / 4];
  std::byte bytes[block_values], halves[block_values / 2];
  for (std::size_t begin = 0; begin < count; begin += block_values) {
    const std::size_t part = std::min(block_values, count - begin), wide = (part * bits + 7) / 8;
    const bool whole = part == block_values;
    const float* from = values + begin;
    if (!whole) from = static_cast<const float*>(std::memcpy(padded, from, part * sizeof(float)));
    const Scan found = scan(from, least_exponent);
    *out++ = static_cast<std::byte>(found.exponent);
    std::byte* const to = whole && bits == 8 ? out : bytes;
    if (key == 0) {
      quantize_block<bits, false>(to, from, found, nullptr);
    } else {
      draw(chances, mix(key + (first + begin) * 0x9e3779b97f4a7c15U));  // SplitMix64
      quantize_block<bits, true>(to, from, found, chances);
    }
    if constexpr (bits == 4) pack_halves(whole ? out : halves, bytes);
    if (!whole) std::memcpy(out, bits == 4 ? halves : bytes, wide);
    out += wide;
  }
}

template <int bits>
HWY_INLINE void from_blocks(float* HWY_RESTRICT values, const std::byte* HWY_RESTRICT blocks, std::size_t count,
                            float divisor) {
  const F f;
  std::byte bytes[block_values] = {};
  HWY_ALIGN float rest[block_values];
  for (std::size_t begin = 0; begin < count; begin += block_values) {
    const std::size_t part = std::min(block_values, count - begin), wide = (part * bits + 7) / 8;
    const float step = step_of<bits>(read_exponent(*blocks++));
    const std::byte* const from = bytes_of_values<bits>(blocks, wide, bytes);
    float* const to = part < block_values ? rest : values + begin;
    for_values<bits>(from, step, [&](std::size_t i, auto value) {
      if (divisor != 1) value = hn::Div(value, hn::Set(f, divisor));
      hn::StoreU(value, f, to + i);
    });
    if (part < block_values) std::memcpy(values + begin, rest, part * sizeof(float));
    blocks += wide;
  }
}

// Sums that are a 2^headroom-th of their size, of a block that is padded with 0; what is no float32 is not finite. To 8
// bits, to nearest even; returns the end.
HWY_INLINE std::byte* round_block(std::byte* HWY_RESTRICT out, float* HWY_RESTRICT sums, std::size_t part) {
  const F f;
  std::byte rest[block_values];
  for (std::size_t i = 0; i < block_values; i += hn::Lanes(f)) {
    const auto sum = hn::Load(f, sums + i);
    hn::Store(hn::IfThenElse(hn::Lt(hn::Abs(sum), hn::Set(f, 0x1p115F)), sum, hn::NaN(f)), f, sums + i);
  }
  const Scan found = scan(sums, least_exponent - headroom);
  *out++ = static_cast<std::byte>(found.exponent + headroom);
  quantize_block<8, false>(part < block_values ? rest : out, sums, found, nullptr);
  if (part < block_values) std::memcpy(out, rest, part);
  return out + part;
}

template <int bits>
HWY_INLINE void sum_blocks(std::byte* HWY_RESTRICT out, const std::byte* const* HWY_RESTRICT sources, std::size_t ranks,
                           std::size_t bytes) {
  const F f;
  HWY_ALIGN float sums[block_values];
  std::byte padded[block_values] = {};
  constexpr std::size_t widest = block_values * bits / 8;
  for (std::size_t at = 0; at < bytes; at += widest + 1) {
    const std::size_t wide = std::min(widest, bytes - at - 1), part = wide * 8 / bits;
    std::fill(sums, sums + block_values, 0.0F);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const float step = step_of<bits>(read_exponent(sources[rank][at]) - headroom);
      const std::byte* const from = bytes_of_values<bits>(sources[rank] + at + 1, wide, padded);
      for_values<bits>(from, step,
                       [&](std::size_t i, auto value) { hn::Store(hn::Add(hn::Load(f, sums + i), value), f, sums + i); });
    }
    out = round_block(out, sums, part);
  }
}

void ToBlocks(DType type, std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, std::size_t count,
              std::uint64_t key, std::uint64_t first) {
  type == block4 ? to_blocks<4>(out, values, count, key, first) : to_blocks<8>(out, values, count, key, first);
}

void FromBlocks(DType type, float* HWY_RESTRICT values, const std::byte* HWY_RESTRICT blocks, std::size_t count,
                float divisor) {
  type == block4 ? from_blocks<4>(values, blocks, count, divisor) : from_blocks<8>(values, blocks, count, divisor);
}

void SumBlocks(DType type, std::byte* HWY_RESTRICT out, const std::byte* const* HWY_RESTRICT sources, std::size_t ranks,
               std::size_t bytes) {
  type == block4 ? sum_blocks<4>(out, sources, ranks, bytes) : sum_blocks<8>(out, sources, ranks, bytes);
}

void RoundToBlocks(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT sums, std::size_t count) {
  for (std::size_t begin = 0; begin < count; begin += block_values) {
    HWY_ALIGN float padded[block_values] = {};
    const std::size_t part = std::min(block_values, count - begin);
    std::memcpy(padded, sums + begin, part * sizeof(float));
    out = round_block(out, padded, part);
  }
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {

HWY_EXPORT(ToBlocks);
HWY_EXPORT(FromBlocks);
HWY_EXPORT(SumBlocks);
HWY_EXPORT(RoundToBlocks);

void to_blocks(DType type, std::byte* out, const float* values, std::size_t count, std::uint64_t key, std::uint64_t first) {
  HWY_DYNAMIC_DISPATCH(ToBlocks)(type, out, values, count, key, first);
}

void from_blocks(DType type, float* values, const std::byte* blocks, std::size_t count, std::uint32_t divisor) {
  HWY_DYNAMIC_DISPATCH(FromBlocks)(type, values, blocks, count, static_cast<float>(divisor));
}

void sum_blocks(DType type, std::byte* out, std::span<const std::byte* const> sources, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(SumBlocks)(type, out, sources.data(), sources.size(), bytes);
}

void round_to_blocks(std::byte* out, const float* sums, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(RoundToBlocks)(out, sums, count);
}

}  // namespace netsum::kernels
#endif
