// A reflected 32-bit CRC by carry-less multiplication, for every vector width. Include it after hwy/highway.h in a source
// that foreach_target.h compiles once per target.
//
// Some processors have VPCLMULQDQ without AVX-512 (AMD's Zen 3, Intel's Alder Lake). They fold vectors of 256 bits. Highway
// has no target for them, so the choice between 128 and 256 bits with AVX2 is made here.
//
// Each sees every vector as it is folded, in order, for what else there is to do with the same bytes.
//
// Words computes the CRC without folding: run(state, p, bytes); enough_below, the length from which folding is faster; and
// beside_folding, whether words take less time than the folding that they overlap with.
#if defined(NETSUM_BASE_CRC_FOLD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NETSUM_BASE_CRC_FOLD_INL_H
#undef NETSUM_BASE_CRC_FOLD_INL_H
#else
#define NETSUM_BASE_CRC_FOLD_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/crc_polynomial.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#undef NETSUM_CARRYLESS_PRODUCTS
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE2
#define NETSUM_CARRYLESS_PRODUCTS 0
#else
#define NETSUM_CARRYLESS_PRODUCTS 1
#endif

struct CrcAlone {
  template <class D>
  HWY_INLINE void see(D, hn::Vec<D>) {}
};

#if NETSUM_CARRYLESS_PRODUCTS
using CrcBlock = hn::CappedTag<std::uint64_t, 2>;
constexpr std::size_t crc_block_bytes = 16;
// Highway composes wider products from 128-bit ones where the target has no instruction for them.
using CrcVector = hn::CappedTag<std::uint64_t, HWY_TARGET == HWY_AVX3_DL ? 8 : 2>;

template <class D>
HWY_INLINE hn::Vec<D> crc_load(D d, const std::byte* p) {
  const hn::Repartition<std::uint8_t, D> d8;
  return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p)));
}
template <class D, class Each>
HWY_INLINE hn::Vec<D> crc_load(D d, const std::byte* p, Each& each) {
  const auto loaded = crc_load(d, p);
  each.see(d, loaded);
  return loaded;
}

// The running CRC enters with the first four bytes.
template <class D>
HWY_INLINE hn::Vec<D> crc_begin(D d, std::uint32_t state, hn::Vec<D> first) {
  return hn::Xor(first, hn::IfThenElseZero(hn::FirstN(d, 1), hn::Set(d, state)));
}

template <class V>
HWY_INLINE V crc_fold(V blocks, V constants) {
  return hn::Xor(hn::CLMulLower(blocks, constants), hn::CLMulUpper(blocks, constants));
}

#if HWY_TARGET == HWY_AVX2
using CrcWideVector = hn::CappedTag<std::uint64_t, 4>;

// For processors with VPCLMULQDQ. In assembly, because a function for AVX2 may not call its intrinsics.
HWY_INLINE hn::Vec<CrcWideVector> crc_fold(hn::Vec<CrcWideVector> blocks, hn::Vec<CrcWideVector> constants) {
  hn::Vec<CrcWideVector> lower, upper;
  asm("vpclmulqdq $0x00, %2, %1, %0" : "=x"(lower.raw) : "x"(blocks.raw), "x"(constants.raw));
  asm("vpclmulqdq $0x11, %2, %1, %0" : "=x"(upper.raw) : "x"(blocks.raw), "x"(constants.raw));
  return hn::Xor(lower, upper);
}
#endif

template <class Polynomial, unsigned bits, class D>
HWY_INLINE hn::Vec<D> crc_constants(D d) {
  static constexpr auto k = Polynomial::fold_by(bits);
  return hn::OddEven(hn::Set(d, k.upper), hn::Set(d, k.lower));
}

// The remainder of the 64 bits in the lower half (Barrett).
template <class Polynomial>
HWY_INLINE std::uint32_t crc_rest(hn::Vec<CrcBlock> value) {
  const CrcBlock d;
  const auto mask = hn::Set(d, std::uint64_t{0xffffffff});
  const auto quotient = hn::And(hn::CLMulLower(hn::And(value, mask), hn::Set(d, Polynomial::inverse)), mask);
  return static_cast<std::uint32_t>(hn::GetLane(hn::Xor(value, hn::CLMulLower(quotient, hn::Set(d, Polynomial::whole)))) >>
                                    32);
}

// The state after a block: times x^32, reduced to 96 bits, to 64, to 32.
template <class Polynomial>
HWY_INLINE std::uint32_t crc_of_block(hn::Vec<CrcBlock> block) {
  const CrcBlock d;
  constexpr std::uint64_t to_96 = Polynomial::power_of_x(95), to_64 = Polynomial::power_of_x(63);
  block = hn::Xor(hn::CLMulLower(block, hn::Set(d, to_96)), hn::ShiftRightBytes<8>(d, block));
  const auto highest = hn::And(block, hn::Set(d, std::uint64_t{0xffffffff}));
  return crc_rest<Polynomial>(hn::Xor(hn::CLMulLower(highest, hn::Set(d, to_64)), hn::ShiftRightBytes<4>(d, block)));
}

// The last of a vector's blocks, with the others folded onto it.
template <class Polynomial, class D>
HWY_INLINE hn::Vec<CrcBlock> crc_last_block(D d, hn::Vec<D> v) {
  constexpr std::size_t blocks = hn::MaxLanes(D()) / 2;
  if constexpr (blocks == 1) {
    return v;
  } else {
    alignas(64) static constexpr auto onto_last = [] {
      std::array<std::uint64_t, 2 * blocks> k{};
      for (unsigned block = 0; block + 1 < blocks; ++block) {
        const auto constants = Polynomial::fold_by(128 * (static_cast<unsigned>(blocks) - 1 - block));
        k[2 * block] = constants.lower;
        k[2 * block + 1] = constants.upper;
      }
      return k;
    }();
    alignas(64) std::uint64_t last[2 * blocks], folded[2 * blocks];
    hn::Store(v, d, last);
    hn::Store(crc_fold(v, hn::Load(d, onto_last.data())), d, folded);
    const CrcBlock block;
    auto result = hn::Load(block, last + 2 * blocks - 2);
    for (std::size_t i = 0; i + 2 < 2 * blocks; i += 2) result = hn::Xor(result, hn::Load(block, folded + i));
    return result;
  }
}

// Folds four vectors at a time, then one; there are at least four. Advances p to the rest, which is shorter than a vector.
template <class Polynomial, class D, class Each>
HWY_INLINE hn::Vec<CrcBlock> crc_fold_vectors(D d, std::uint32_t state, const std::byte*& p, std::size_t& bytes,
                                              Each& each) {
  constexpr std::size_t width = hn::MaxLanes(D()) * sizeof(std::uint64_t);
  auto a = crc_begin(d, state, crc_load(d, p, each));
  auto b = crc_load(d, p + width, each), c = crc_load(d, p + 2 * width, each), e = crc_load(d, p + 3 * width, each);
  const auto four = crc_constants<Polynomial, 32 * width>(d);
  for (p += 4 * width, bytes -= 4 * width; bytes >= 4 * width; p += 4 * width, bytes -= 4 * width) {
    a = hn::Xor(crc_fold(a, four), crc_load(d, p, each));
    b = hn::Xor(crc_fold(b, four), crc_load(d, p + width, each));
    c = hn::Xor(crc_fold(c, four), crc_load(d, p + 2 * width, each));
    e = hn::Xor(crc_fold(e, four), crc_load(d, p + 3 * width, each));
  }
  const auto one = crc_constants<Polynomial, 8 * width>(d);
  a = hn::Xor(
      hn::Xor(crc_fold(a, crc_constants<Polynomial, 24 * width>(d)), crc_fold(b, crc_constants<Polynomial, 16 * width>(d))),
      hn::Xor(crc_fold(c, one), e));
  for (; bytes >= width; p += width, bytes -= width) a = hn::Xor(crc_fold(a, one), crc_load(d, p, each));
  return crc_last_block<Polynomial>(d, a);
}

template <class Polynomial, class Words, class Vector, class Each>
HWY_INLINE std::uint32_t crc_folded_by(Vector vector, std::uint32_t state, const std::byte* p, std::size_t bytes,
                                       Each& each) {
  constexpr std::size_t block_bytes = crc_block_bytes, vector_bytes = hn::MaxLanes(Vector()) * sizeof(std::uint64_t);
  const CrcBlock d;
  const bool vectors = vector_bytes > block_bytes && bytes >= 4 * vector_bytes;
  // The part that fills no block or vector goes first, so that it overlaps with the loads of the rest.
  const std::size_t head = bytes % (vectors && Words::beside_folding ? vector_bytes : block_bytes);
  state = Words::run(state, p, head);
  p += head;
  bytes -= head;
  hn::Vec<CrcBlock> block;
  if (vectors) {
    block = crc_fold_vectors<Polynomial>(vector, state, p, bytes, each);
  } else if (bytes >= 4 * block_bytes) {
    block = crc_fold_vectors<Polynomial>(d, state, p, bytes, each);
  } else {
    block = crc_begin(d, state, crc_load(d, p));
    p += block_bytes;
    bytes -= block_bytes;
  }
  const auto one = crc_constants<Polynomial, 128>(d);
  for (; bytes > 0; p += block_bytes, bytes -= block_bytes) block = hn::Xor(crc_fold(block, one), crc_load(d, p));
  if constexpr (!Words::beside_folding) return crc_of_block<Polynomial>(block);
  alignas(16) std::uint64_t last[2];
  hn::Store(block, d, last);
  return Words::run(0, reinterpret_cast<const std::byte*>(last), sizeof last);
}
#endif

// `each` sees all bytes if they are a multiple of crc_whole_vectors, and there are such products.
constexpr std::size_t crc_whole_vectors = 256;
template <class Polynomial, class Words, class Each = CrcAlone>
HWY_INLINE std::uint32_t crc_folded(std::uint32_t state, const std::byte* p, std::size_t bytes,
                                    [[maybe_unused]] Each each = Each()) {
#if NETSUM_CARRYLESS_PRODUCTS
  if (bytes < std::max(Words::enough_below, crc_block_bytes)) return Words::run(state, p, bytes);
#if HWY_TARGET == HWY_AVX2
  if (__builtin_cpu_supports("vpclmulqdq")) return crc_folded_by<Polynomial, Words>(CrcWideVector(), state, p, bytes, each);
#endif
  return crc_folded_by<Polynomial, Words>(CrcVector(), state, p, bytes, each);
#else
  return Words::run(state, p, bytes);
#endif
}

}  // namespace netsum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
