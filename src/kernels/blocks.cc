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

// A byte for each of four values, from the number of these four in the block, so that a repeat is the same to the bit: the
// finalizer "lowbias32" of the words of `key` and the number.
HWY_INLINE auto draw(hn::Vec<U> numbers, std::uint64_t key) {
  const U words;
  auto word = hn::Xor(hn::Mul(numbers, hn::Set(words, 0x9e3779b1U)), hn::Set(words, static_cast<std::uint32_t>(key)));
  word = hn::Mul(hn::Xor(word, hn::ShiftRight<16>(word)), hn::Set(words, 0x7feb352dU));
  word = hn::Xor(hn::Mul(hn::Xor(word, hn::ShiftRight<15>(word)), hn::Set(words, 0x846ca68bU)),
                 hn::Set(words, static_cast<std::uint32_t>(key >> 32)));
  return hn::Xor(word, hn::ShiftRight<16>(word));
}

// quantize_finite(): with chances that follow from `key`, or to nearest even. Chances are added to 256ths of a step, of
// which there are at most 2^15. Of 4 bits the first value of two is in a byte's lower ones.
#if HWY_TARGET == HWY_SCALAR  // whose vectors have one value
template <int bits, bool at_random>
HWY_INLINE void quantize_finite(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, float per_unit,
                                std::uint64_t key) {
  for (std::size_t i = 0; i < block_values; ++i) {
    const auto exact = hn::Mul(hn::Set(F(), values[i]), hn::Set(F(), per_unit));
    int steps = hn::GetLane(hn::DemoteTo(hn::Rebind<std::int16_t, F>(), nearest_in_range(exact)));
    if constexpr (at_random) {
      const std::uint32_t word = hn::GetLane(draw(hn::Set(U(), static_cast<std::uint32_t>(i / 4)), key));
      steps = std::min(steps + static_cast<int>(word >> i % 4 * 8 & 255), 32767) >> 8;
    }
    const auto value = static_cast<std::byte>(std::clamp(steps, -most(bits), most(bits)) & 255);
    if constexpr (bits == 8) {
      out[i] = value;
    } else {
      out[i / 2] = i % 2 == 0 ? value & std::byte{15} : out[i / 2] | value << 4;
    }
  }
}
#else
// Vectors of 16-bit integers and bytes as long as those of floats. Four of floats become one of bytes: pack() takes two,
// on AVX2 and up 16 bytes of each at a time, so what comes of four is in order when its 4-byte words are.
using I16 = hn::Repartition<std::int16_t, F>;
using Bytes = hn::Repartition<std::int8_t, F>;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr std::size_t pieces = hn::MaxLanes(F()) / 4;
HWY_INLINE auto pack(hn::Vec<I> a, hn::Vec<I> b) {
  return hn::ReorderDemote2To(I16(), a, b);
}
HWY_INLINE auto pack(hn::Vec<I16> a, hn::Vec<I16> b) {
#if HWY_TARGET == HWY_AVX2
  return hn::Vec<Bytes>{_mm256_packs_epi16(a.raw, b.raw)};
#else
  return hn::Vec<Bytes>{_mm512_packs_epi16(a.raw, b.raw)};
#endif
}
#else
constexpr std::size_t pieces = 1;
HWY_INLINE auto pack(hn::Vec<I> a, hn::Vec<I> b) {
  const hn::Half<I16> half;
  return hn::Combine(I16(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
}
HWY_INLINE auto pack(hn::Vec<I16> a, hn::Vec<I16> b) {
  const hn::Half<Bytes> half;
  return hn::Combine(Bytes(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
}
#endif
// Where the words of what is packed are in order, and the reverse.
struct Orders {
  HWY_ALIGN std::int32_t of_packed[16], in_packed[16];
};
constexpr Orders orders = [] {
  Orders made{};
  for (std::size_t i = 0; i < 4 * pieces; ++i) {
    const std::size_t place = i % 4 * pieces + i / 4;
    made.of_packed[i] = static_cast<std::int32_t>(place);
    made.in_packed[place] = static_cast<std::int32_t>(i);
  }
  return made;
}();

template <int bits>
HWY_INLINE void store_values(std::byte* HWY_RESTRICT out, hn::Vec<Bytes> values) {
  if constexpr (bits == 8) {
    hn::StoreU(values, Bytes(), reinterpret_cast<std::int8_t*>(out));
  } else {
    const hn::RepartitionToWide<hn::RebindToUnsigned<Bytes> > pairs;
    const hn::Rebind<std::uint8_t, decltype(pairs)> to;
    const auto halves = hn::BitCast(pairs, hn::And(values, hn::Set(Bytes(), 15)));
    const auto both = hn::Or(halves, hn::ShiftRight<4>(halves));
    hn::StoreU(hn::TruncateTo(to, both), to, reinterpret_cast<std::uint8_t*>(out));
  }
}

template <int bits, bool at_random>
HWY_INLINE void quantize_finite(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, float per_unit,
                                std::uint64_t key) {
  const F f;
  const I integers;
  const U words;
  const I16 shorts;
  const Bytes bytes;
  const std::size_t lanes = hn::Lanes(f);
  for (std::size_t i = 0; i < block_values; i += 4 * lanes) {
    const auto steps = [&](std::size_t k) HWY_ATTR {
      return nearest_in_range(hn::Mul(hn::LoadU(f, values + i + k * lanes), hn::Set(f, per_unit)));
    };
    auto low = pack(steps(0), steps(1)), high = pack(steps(2), steps(3));
    if constexpr (at_random) {
      const auto numbers = hn::BitCast(words, hn::Load(integers, orders.of_packed));
      const auto chances =
          hn::BitCast(bytes, draw(hn::Add(numbers, hn::Set(words, static_cast<std::uint32_t>(i / 4))), key));
      const auto zero = hn::Zero(bytes);
      low = hn::SaturatedAdd(low, hn::BitCast(shorts, hn::InterleaveLower(bytes, chances, zero)));
      high = hn::SaturatedAdd(high, hn::BitCast(shorts, hn::InterleaveUpper(bytes, chances, zero)));
      low = hn::ShiftRight<8>(low);
      high = hn::ShiftRight<8>(high);
    }
    // The conversion to bytes keeps the upper limit of 8 bits.
    auto packed = hn::Max(pack(low, high), hn::Set(bytes, -most(bits)));
    if constexpr (bits < 8) packed = hn::Min(packed, hn::Set(bytes, most(bits)));
    if constexpr (pieces > 1) {
      const auto order = hn::SetTableIndices(integers, orders.in_packed);
      packed = hn::BitCast(bytes, hn::TableLookupLanes(hn::BitCast(integers, packed), order));
    }
    store_values<bits>(out + i * bits / 8, packed);
  }
}
#endif

template <int bits, bool at_random>
HWY_INLINE void quantize_block(std::byte* HWY_RESTRICT out, const float* HWY_RESTRICT values, const Scan& found,
                               std::uint64_t key) {
  quantize_finite<bits, at_random>(out, values, steps_per_unit<bits>(found.exponent) * (at_random ? 256 : 1), key);
  if (found.finite) return;
  for (std::size_t i = 0; i < block_values; ++i) {
    if (std::isfinite(values[i])) continue;
    if constexpr (bits == 8) {
      out[i] = std::byte{0x80};
    } else {
      out[i / 2] =
          i % 2 == 0 ? (out[i / 2] & std::byte{0xf0}) | std::byte{0x08} : (out[i / 2] & std::byte{0x0f}) | std::byte{0x80};
    }
  }
}

// A byte for each value of a block, from 4 bits of two's complement.
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
  std::byte rest[block_values];
  for (std::size_t begin = 0; begin < count; begin += block_values) {
    const std::size_t part = std::min(block_values, count - begin), wide = (part * bits + 7) / 8;
    const bool whole = part == block_values;
    const float* from = values + begin;
    if (!whole) from = static_cast<const float*>(std::memcpy(padded, from, part * sizeof(float)));
    const Scan found = scan(from, least_exponent);
    *out++ = static_cast<std::byte>(found.exponent);
    std::byte* const to = whole ? out : rest;
    if (key == 0) {
      quantize_block<bits, false>(to, from, found, 0);
    } else {
      quantize_block<bits, true>(to, from, found, mix(key + (first + begin) * 0x9e3779b97f4a7c15U));  // SplitMix64
    }
    if (!whole) std::memcpy(out, rest, wide);
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
  quantize_block<8, false>(part < block_values ? rest : out, sums, found, 0);
  if (part < block_values) std::memcpy(out, rest, part);
  return out + part;
}

#if HWY_TARGET == HWY_SCALAR
template <int bits>
HWY_INLINE bool add_exactly(float*, const std::byte* const*, std::size_t, std::size_t) {
  return false;
}
#else
// Sums as integers: those of the values of some sources, each times the power of two by which its step is longer than the
// shortest. Returns whether all are finite.
using Words = hn::CappedTag<std::int16_t, 16>;
template <int bits>
HWY_INLINE bool add_integers(std::int16_t* HWY_RESTRICT sums, const std::byte* const* HWY_RESTRICT sources,
                             std::size_t ranks, std::size_t at, std::uint32_t shortest) {
  const Words words;
  const hn::Repartition<std::int8_t, Words> bytes;
  const std::size_t lanes = hn::Lanes(words);
  auto least = hn::Zero(bytes);
  for (std::size_t i = 0; i < block_values; i += 4 * lanes) {
    auto a = hn::Zero(words), b = a, c = a, d = a;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::byte* const from = sources[rank] + at;
      const std::uint32_t longer = read_exponent(*from) - shortest;
      const auto* const values = reinterpret_cast<const std::int8_t*>(from + 1 + i * bits / 8);
      if constexpr (bits == 8) {
        const auto factor = hn::Set(words, static_cast<std::int16_t>(1 << longer));
        const auto next = [&](std::size_t k) HWY_ATTR {
          const hn::Rebind<std::int8_t, Words> narrow;
          return hn::Mul(hn::PromoteTo(words, hn::LoadU(narrow, values + k * lanes)), factor);
        };
        least = hn::Min(least, hn::Min(hn::LoadU(bytes, values), hn::LoadU(bytes, values + 2 * lanes)));
        a = hn::Add(a, next(0));
        b = hn::Add(b, next(1));
        c = hn::Add(c, next(2));
        d = hn::Add(d, next(3));
      } else {
        // Each of a word's four values, in its highest bits, and down again.
        const auto factor = hn::Set(words, static_cast<std::int16_t>(16 << longer));
        const auto highest = hn::Set(words, static_cast<std::int16_t>(0xf000));
        const auto four = hn::BitCast(words, hn::LoadU(bytes, values)), up = hn::ShiftLeft<4>(four);
        least = hn::Min(least, hn::Min(hn::BitCast(bytes, four), hn::BitCast(bytes, up)));
        a = hn::Add(a, hn::MulHigh(hn::ShiftLeft<12>(four), factor));
        b = hn::Add(b, hn::MulHigh(hn::And(hn::ShiftLeft<8>(four), highest), factor));
        c = hn::Add(c, hn::MulHigh(hn::And(up, highest), factor));
        d = hn::Add(d, hn::MulHigh(hn::And(four, highest), factor));
      }
    }
    if constexpr (bits == 8) {
      hn::Store(a, words, sums + i);
      hn::Store(b, words, sums + i + lanes);
      hn::Store(c, words, sums + i + 2 * lanes);
      hn::Store(d, words, sums + i + 3 * lanes);
    } else {
      hn::StoreInterleaved4(a, b, c, d, words, sums + i);
    }
  }
  // Of 4 bits, the byte's upper ones are not_finite() up to here.
  constexpr int strange = bits == 8 ? not_finite(8) : -113;
  return hn::AllTrue(bytes, hn::Gt(least, hn::Set(bytes, strange)));
}

// The sums of whole blocks, where additions in float32 are exact, so that integers have the same: false if they may not be,
// or not all is finite.
template <int bits>
HWY_INLINE bool add_exactly(float* HWY_RESTRICT sums, const std::byte* const* HWY_RESTRICT sources, std::size_t ranks,
                            std::size_t at) {
  std::uint32_t shortest = most_exponent, longest = least_exponent;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t exponent = read_exponent(sources[rank][at]);
    shortest = std::min(shortest, exponent);
    longest = std::max(longest, exponent);
  }
  // A source's values fit into 16 bits, those of all into a float's significand.
  const std::uint32_t spread = longest - shortest;
  if (spread > (bits == 8 ? 8 : 10)) return false;
  const std::size_t largest = static_cast<std::size_t>(most(bits)) << spread, group = 32767 / largest;
  if (ranks * largest > 1 << 24) return false;
  const F f;
  const I integers;
  const hn::Rebind<std::int16_t, F> narrow;
  HWY_ALIGN std::int16_t some[block_values];
  const auto step = hn::Set(f, step_of<bits>(shortest - headroom));
  for (std::size_t begin = 0; begin < ranks; begin += group) {
    if (!add_integers<bits>(some, sources + begin, std::min(group, ranks - begin), at, shortest)) return false;
    for (std::size_t i = 0; i < block_values; i += hn::Lanes(f)) {
      const auto value = hn::Mul(hn::ConvertTo(f, hn::PromoteTo(integers, hn::Load(narrow, some + i))), step);
      hn::Store(begin == 0 ? value : hn::Add(hn::Load(f, sums + i), value), f, sums + i);
    }
  }
  return true;
}
#endif

template <int bits>
HWY_INLINE void sum_blocks(std::byte* HWY_RESTRICT out, const std::byte* const* HWY_RESTRICT sources, std::size_t ranks,
                           std::size_t bytes) {
  const F f;
  HWY_ALIGN float sums[block_values];
  std::byte padded[block_values] = {};
  constexpr std::size_t widest = block_values * bits / 8;
  for (std::size_t at = 0; at < bytes; at += widest + 1) {
    const std::size_t wide = std::min(widest, bytes - at - 1), part = wide * 8 / bits;
    if (wide < widest || !add_exactly<bits>(sums, sources, ranks, at)) {
      std::fill(sums, sums + block_values, 0.0F);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const float step = step_of<bits>(read_exponent(sources[rank][at]) - headroom);
        const std::byte* const from = bytes_of_values<bits>(sources[rank] + at + 1, wide, padded);
        for_values<bits>(from, step,
                         [&](std::size_t i, auto value) { hn::Store(hn::Add(hn::Load(f, sums + i), value), f, sums + i); });
      }
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
