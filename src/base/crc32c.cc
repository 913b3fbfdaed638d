#include "base/crc32c.h"

#include <array>
#include <bit>

#include "base/bytes.h"

#define HWY_WANT_AVX3_DL 1  // carry-less products of whole AVX-512 vectors
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/crc32c.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#ifndef NETSUM_CRC32C_TABLES
#define NETSUM_CRC32C_TABLES
namespace netsum::crc32c_detail {

constexpr std::uint32_t polynomial = 0x82f63b78;  // reflected

// x^n modulo the polynomial, reflected: bit 31 is x^0.
constexpr std::uint32_t power_of_x(unsigned n) {
  std::uint32_t value = 0x80000000;
  for (; n > 0; --n) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
  return value;
}

// Slicing by 8: table[k][b] is the CRC of byte b followed by k zero bytes.
constexpr auto tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t value = b;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
    t[0][b] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xff];
  }
  return t;
}();

// Folding by `bits`: what the lower and the upper half of a 128-bit block are multiplied by. A carry-less product of
// reflected operands is one bit short, and the constant sits in the low half of its word: hence 31 and -33.
struct FoldConstants {
  std::uint64_t lower, upper;
};
constexpr FoldConstants fold_by(unsigned bits) {
  return {power_of_x(bits + 31), power_of_x(bits - 33)};
}

}  // namespace netsum::crc32c_detail
#endif

HWY_BEFORE_NAMESPACE();
namespace netsum::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_SSE4
HWY_INLINE std::uint32_t crc_words(std::uint32_t state, const std::byte* p, std::size_t bytes) {
  std::uint64_t wide = state;
  for (; bytes >= 8; bytes -= 8, p += 8) wide = __builtin_ia32_crc32di(wide, load_le<std::uint64_t>(p));
  state = static_cast<std::uint32_t>(wide);
  if (bytes >= 4) {
    state = __builtin_ia32_crc32si(state, load_le<std::uint32_t>(p));
    bytes -= 4;
    p += 4;
  }
  for (; bytes > 0; --bytes, ++p) state = __builtin_ia32_crc32qi(state, std::to_integer<unsigned char>(*p));
  return state;
}
#else
HWY_INLINE std::uint32_t crc_words(std::uint32_t state, const std::byte* p, std::size_t bytes) {
  const auto& t = crc32c_detail::tables;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    const std::uint64_t word = load_le<std::uint64_t>(p) ^ state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i) state ^= t[7 - i][word >> (8 * i) & 0xff];
  }
  for (; bytes > 0; --bytes, ++p) state = (state >> 8) ^ t[0][(state ^ std::to_integer<std::uint32_t>(*p)) & 0xff];
  return state;
}
#endif

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE2
std::uint32_t Crc(std::uint32_t state, const std::byte* p, std::size_t bytes) {
  return crc_words(state, p, bytes);
}
#else
// Carry-less multiplication folds four vectors at a time, then one; what does not fill a vector goes first, word by word,
// so that it runs beside the loads of the rest.
std::uint32_t Crc(std::uint32_t state, const std::byte* p, std::size_t bytes) {
  // Highway puts wider products together from 128-bit ones where the target has no instruction for them.
  using D = hn::CappedTag<std::uint64_t, HWY_TARGET == HWY_AVX3_DL ? 8 : 2>;
  const D d;
  const hn::Repartition<std::uint8_t, D> d8;
  constexpr std::size_t width = hn::MaxLanes(D()) * sizeof(std::uint64_t), blocks = width / 16;
  if (bytes < 4 * width) return crc_words(state, p, bytes);
  const std::size_t head = bytes % width;
  state = crc_words(state, p, head);
  p += head;
  bytes -= head;

  const auto load = [&](std::size_t at) {
    return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p + at)));
  };
  const auto fold = [](auto x, auto k) { return hn::Xor(hn::CLMulLower(x, k), hn::CLMulUpper(x, k)); };
  const auto constants = [&](crc32c_detail::FoldConstants k) {
    return hn::OddEven(hn::Set(d, k.upper), hn::Set(d, k.lower));
  };
  static constexpr auto by_one = crc32c_detail::fold_by(8 * width), by_two = crc32c_detail::fold_by(16 * width),
                        by_three = crc32c_detail::fold_by(24 * width), by_four = crc32c_detail::fold_by(32 * width);

  alignas(64) std::uint64_t first[8] = {state};
  auto a = hn::Xor(load(0), hn::Load(d, first));  // the running CRC enters with the first four bytes
  auto b = load(width), c = load(2 * width), e = load(3 * width);
  p += 4 * width;
  bytes -= 4 * width;
  const auto four = constants(by_four);
  for (; bytes >= 4 * width; bytes -= 4 * width, p += 4 * width) {
    a = hn::Xor(fold(a, four), load(0));
    b = hn::Xor(fold(b, four), load(width));
    c = hn::Xor(fold(c, four), load(2 * width));
    e = hn::Xor(fold(e, four), load(3 * width));
  }
  const auto one = constants(by_one);
  a = hn::Xor(hn::Xor(fold(a, constants(by_three)), fold(b, constants(by_two))), hn::Xor(fold(c, one), e));
  for (; bytes >= width; bytes -= width, p += width) a = hn::Xor(fold(a, one), load(0));

  // The blocks of the last vector, each folded onto the last one of them.
  alignas(64) static constexpr auto onto_last = [] {
    std::array<std::uint64_t, 2 * blocks> k{};
    for (unsigned block = 0; block + 1 < blocks; ++block) {
      const auto fold_constants = crc32c_detail::fold_by(128 * (static_cast<unsigned>(blocks) - 1 - block));
      k[2 * block] = fold_constants.lower;
      k[2 * block + 1] = fold_constants.upper;
    }
    return k;
  }();
  alignas(64) std::uint64_t last[2 * blocks], folded[2 * blocks];
  hn::Store(a, d, last);
  hn::Store(fold(a, hn::Load(d, onto_last.data())), d, folded);
  for (std::size_t i = 0; i + 2 < 2 * blocks; ++i) last[2 * blocks - 2 + i % 2] ^= folded[i];
  return crc_words(0, reinterpret_cast<const std::byte*>(last + 2 * blocks - 2), 16);
}
#endif

}  // namespace netsum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum {

HWY_EXPORT(Crc);

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous) {
  return ~HWY_DYNAMIC_DISPATCH(Crc)(~previous, bytes.data(), bytes.size());
}

}  // namespace netsum
#endif
