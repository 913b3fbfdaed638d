// A reflected 32-bit CRC by carry-less multiplication, for every vector width: to be included behind hwy/highway.h by a
// source that foreach_target.h compiles once a target.
#if defined(NETSUM_BASE_CRC_FOLD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NETSUM_BASE_CRC_FOLD_INL_H
#undef NETSUM_BASE_CRC_FOLD_INL_H
#else
#define NETSUM_BASE_CRC_FOLD_INL_H
#endif

#include <array>
#include <cstddef>
#include <cstdint>

#include <hwy/highway.h>

#include "base/crc_polynomial.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE2
template <class Polynomial, class Words>
HWY_INLINE std::uint32_t crc_folded(std::uint32_t state, const std::byte* p, std::size_t bytes, Words words) {
  return words(state, p, bytes);
}
#else
// Carry-less multiplication folds four vectors at a time, then one; what does not fill a vector goes first, word by word,
// so that it runs beside the loads of the rest.
template <class Polynomial, class Words>
HWY_INLINE std::uint32_t crc_folded(std::uint32_t state, const std::byte* p, std::size_t bytes, Words words) {
  // Highway puts wider products together from 128-bit ones where the target has no instruction for them.
  using D = hn::CappedTag<std::uint64_t, HWY_TARGET == HWY_AVX3_DL ? 8 : 2>;
  const D d;
  const hn::Repartition<std::uint8_t, D> d8;
  constexpr std::size_t width = hn::MaxLanes(D()) * sizeof(std::uint64_t), blocks = width / 16;
  if (bytes < 4 * width) return words(state, p, bytes);
  const std::size_t head = bytes % width;
  state = words(state, p, head);
  p += head;
  bytes -= head;

  const auto load = [&](std::size_t at) {
    return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(p + at)));
  };
  const auto fold = [](auto x, auto k) { return hn::Xor(hn::CLMulLower(x, k), hn::CLMulUpper(x, k)); };
  const auto constants = [&](typename Polynomial::FoldConstants k) {
    return hn::OddEven(hn::Set(d, k.upper), hn::Set(d, k.lower));
  };
  static constexpr auto by_one = Polynomial::fold_by(8 * width), by_two = Polynomial::fold_by(16 * width),
                        by_three = Polynomial::fold_by(24 * width), by_four = Polynomial::fold_by(32 * width);

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
      const auto fold_constants = Polynomial::fold_by(128 * (static_cast<unsigned>(blocks) - 1 - block));
      k[2 * block] = fold_constants.lower;
      k[2 * block + 1] = fold_constants.upper;
    }
    return k;
  }();
  alignas(64) std::uint64_t last[2 * blocks], folded[2 * blocks];
  hn::Store(a, d, last);
  hn::Store(fold(a, hn::Load(d, onto_last.data())), d, folded);
  for (std::size_t i = 0; i + 2 < 2 * blocks; ++i) last[2 * blocks - 2 + i % 2] ^= folded[i];
  return words(0, reinterpret_cast<const std::byte*>(last + 2 * blocks - 2), 16);
}
#endif

}  // namespace netsum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
