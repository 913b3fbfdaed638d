// Floats in blocks of 64 with an exponent each and 8 bits a value (docs/numerics.md, "8 bits"). Products are with powers of
// two, so exact, fused or not: the bits are the same with every instruction set.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/mix.h"
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block8.cc"
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
using U8 = hn::Rebind<std::uint8_t, F>;

constexpr std::int32_t most = 127, not_finite = -128;
// Sums are in 2^13 times what values are in, so that none of 4,096 ranks' overflows on its way. Steps are normal floats
// there, too.
constexpr std::uint32_t headroom = 13, least_exponent = 7 + headroom, most_exponent = 254;

// 64 steps are the power of two that the block's largest finite value has.
HWY_INLINE float step_of(std::uint32_t exponent) {
  return std::bit_cast<float>((exponent - 6) << 23);
}
HWY_INLINE float steps_per_unit(std::uint32_t exponent) {
  return std::bit_cast<float>((260 - exponent) << 23);
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
  auto largest = hn::Zero(integers), largest_finite = largest;
  for (std::size_t i = 0; i < block8_values; i += hn::Lanes(f)) {
    const auto magnitude = hn::BitCast(integers, hn::Abs(hn::LoadU(f, values + i)));
    largest = hn::Max(largest, magnitude);
    largest_finite = hn::Max(largest_finite, hn::IfThenElseZero(hn::Lt(magnitude, infinite), magnitude));
  }
  const auto bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(integers, largest_finite)));
  return {std::max(bits >> 23, least), hn::AllTrue(integers, hn::Lt(largest, infinite))};
}

// A byte for each value of a block, from a counter, so that a repeat is the same to the bit: the finalizer "lowbias32" of
// 32-bit words, which are the words of `key` and the first value's number, and a number in the block.
HWY_INLINE void draw(std::uint32_t* HWY_RESTRICT chances, std::uint64_t key) {
  const U words;
  static_assert(hn::MaxLanes(words) <= block8_values / 4);
  for (std::size_t i = 0; i < block8_values / 4; i += hn::Lanes(words)) {
    auto word = hn::Xor(hn::Mul(hn::Iota(words, static_cast<std::uint32_t>(i)), hn::Set(words, 0x9e3779b1U)),
                        hn::Set(words, static_cast<std::uint32_t>(key)));
    word = hn::Mul(hn::Xor(word, hn::ShiftRight<16>(word)), hn::Set(words, 0x7feb352dU));
    word = hn::Xor(hn::Mul(hn::Xor(word, hn::ShiftRight<15>(word)), hn::Set(words, 0x846ca68bU)),
                   hn::Set(words, static_cast<std::uint32_t>(key >> 32)));
    word = hn::Xor(word, hn::ShiftRight<16>(word));
    hn::StoreU(word, words, chances + i);
  }
}

// With `chances`, or to nearest even.
template <bool at_random, bool finite>
HWY_INLINE void quantize_block(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, float per_unit,
                               const std::uint8_t* HWY_RESTRICT chances) {
  const F f;
  for (std::size_t i = 0; i < block8_values; i += hn::Lanes(f)) {
    const auto value = hn::LoadU(f, values + i);
    auto steps = hn::Mul(value, hn::Set(f, per_unit));
    if constexpr (at_random) {
      const auto chance = hn::ConvertTo(f, hn::PromoteTo(I(), hn::LoadU(U8(), chances + i)));
      steps = hn::Floor(hn::MulAdd(chance, hn::Set(f, 1.0F / 256), steps));
    }
    // The conversion to bytes keeps the upper limit.
    steps = hn::Max(steps, hn::Set(f, -static_cast<float>(most)));
    if constexpr (!finite) {
      steps = hn::Min(steps, hn::Set(f, static_cast<float>(most)));
      steps = hn::IfThenElse(hn::IsFinite(value), steps, hn::Set(f, static_cast<float>(not_finite)));
    }
    hn::StoreU(hn::DemoteTo(I8(), nearest_in_range(steps)), I8(), reinterpret_cast<std::int8_t*>(out) + i);
  }
}

template <bool at_random>
HWY_INLINE void quantize_block(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, const Scan& found,
                               const std::uint32_t* HWY_RESTRICT drawn) {
  const auto* const chances = reinterpret_cast<const std::uint8_t*>(drawn);
  const float per_unit = steps_per_unit(found.exponent);
  if (found.finite) return quantize_block<at_random, true>(out, values, per_unit, chances);
  quantize_block<at_random, false>(out, values, per_unit, chances);
}

HWY_INLINE auto read_values(const std::byte* HWY_RESTRICT from, float step) {
  const F f;
  const auto steps = hn::PromoteTo(I(), hn::LoadU(I8(), reinterpret_cast<const std::int8_t*>(from)));
  const auto finite = hn::RebindMask(f, hn::Ne(steps, hn::Set(I(), not_finite)));
  return hn::IfThenElse(finite, hn::Mul(hn::ConvertTo(f, steps), hn::Set(f, step)), hn::NaN(f));
}

// body(first value, values, the block): whole blocks in place, the rest of one by way of `whole`, which is zero behind it.
template <class T, class Body>
HWY_INLINE void for_blocks(std::size_t count, T* HWY_RESTRICT whole, const Body& body) {
  std::size_t begin = 0;
  for (; begin + block8_values <= count; begin += block8_values) body(begin, block8_values, static_cast<T*>(nullptr));
  if (begin < count) body(begin, count - begin, whole);
}

void ToBlock8(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, std::size_t count, std::uint64_t key,
              std::uint64_t first) {
  HWY_ALIGN float padded[block8_values] = {};
  HWY_ALIGN std::uint32_t chances[block8_values / 4];
  std::byte rest[block8_values];
  for_blocks(count, padded, [&](std::size_t begin, std::size_t part, float* whole) {
    const float* from = values + begin;
    if (whole != nullptr) from = static_cast<const float*>(std::memcpy(whole, from, part * sizeof(float)));
    const Scan found = scan(from, least_exponent);
    *out++ = static_cast<std::byte>(found.exponent);
    std::byte* const to = whole != nullptr ? rest : out;
    if (key == 0) {
      quantize_block<false>(to, from, found, nullptr);
    } else {
      draw(chances, mix(key ^ mix(first + begin)));
      quantize_block<true>(to, from, found, chances);
    }
    if (whole != nullptr) std::memcpy(out, rest, part);
    out += part;
  });
}

void FromBlock8(float* HWY_RESTRICT values, const std::byte* HWY_RESTRICT blocks, std::size_t count, float divisor) {
  const F f;
  std::byte padded[block8_values] = {};
  HWY_ALIGN float rest[block8_values];
  for_blocks(count, padded, [&](std::size_t begin, std::size_t part, std::byte* whole) {
    const float step = step_of(read_exponent(*blocks++));
    const std::byte* from = blocks;
    if (whole != nullptr) from = static_cast<const std::byte*>(std::memcpy(whole, from, part));
    float* const to = whole != nullptr ? rest : values + begin;
    for (std::size_t i = 0; i < block8_values; i += hn::Lanes(f)) {
      auto value = read_values(from + i, step);
      if (divisor != 1) value = hn::Div(value, hn::Set(f, divisor));
      hn::StoreU(value, f, to + i);
    }
    if (whole != nullptr) std::memcpy(values + begin, rest, part * sizeof(float));
    blocks += part;
  });
}

void SumBlock8(std::byte* HWY_RESTRICT out, const std::byte* const* HWY_RESTRICT sources, std::size_t ranks,
               std::size_t bytes) {
  const F f;
  HWY_ALIGN float sums[block8_values];
  std::byte padded[block8_values] = {}, rest[block8_values];
  for (std::size_t at = 0; at < bytes; at += block8_values + 1) {
    const std::size_t part = std::min(block8_values, bytes - at - 1);
    std::fill(sums, sums + block8_values, 0.0F);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const float step = step_of(read_exponent(sources[rank][at]) - headroom);
      const std::byte* from = sources[rank] + at + 1;
      if (part < block8_values) from = static_cast<const std::byte*>(std::memcpy(padded, from, part));
      for (std::size_t i = 0; i < block8_values; i += hn::Lanes(f)) {
        hn::Store(hn::Add(hn::Load(f, sums + i), read_values(from + i, step)), f, sums + i);
      }
    }
    // What is no float32 is not finite.
    for (std::size_t i = 0; i < block8_values; i += hn::Lanes(f)) {
      const auto sum = hn::Load(f, sums + i);
      hn::Store(hn::IfThenElse(hn::Lt(hn::Abs(sum), hn::Set(f, 0x1p115F)), sum, hn::NaN(f)), f, sums + i);
    }
    const Scan found = scan(sums, least_exponent - headroom);
    out[at] = static_cast<std::byte>(found.exponent + headroom);
    quantize_block<false>(part < block8_values ? rest : out + at + 1, sums, found, nullptr);
    if (part < block8_values) std::memcpy(out + at + 1, rest, part);
  }
}

}  // namespace netsum::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::kernels {

HWY_EXPORT(ToBlock8);
HWY_EXPORT(FromBlock8);
HWY_EXPORT(SumBlock8);

void to_block8(std::byte* out, const float* values, std::size_t count, std::uint64_t key, std::uint64_t first) {
  HWY_DYNAMIC_DISPATCH(ToBlock8)(out, values, count, key, first);
}

void from_block8(float* values, const std::byte* blocks, std::size_t count, std::uint32_t divisor) {
  HWY_DYNAMIC_DISPATCH(FromBlock8)(values, blocks, count, static_cast<float>(divisor));
}

void sum_block8(std::byte* out, std::span<const std::byte* const> sources, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(SumBlock8)(out, sources.data(), sources.size(), bytes);
}

}  // namespace netsum::kernels
#endif
