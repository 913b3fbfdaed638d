#include "base/crc32.h"

#define HWY_WANT_AVX3_DL 1  // carry-less products of whole AVX-512 vectors
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/crc32.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "base/crc_fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::HWY_NAMESPACE {

using Ethernet = CrcPolynomial<0xedb88320>;

struct EthernetWords {
  static constexpr std::size_t enough_below = 32;
  static constexpr bool beside_folding = false;
  static HWY_INLINE std::uint32_t run(std::uint32_t state, const std::byte* p, std::size_t bytes) {
    return Ethernet::table_words(state, p, bytes);
  }
};

std::uint32_t Crc32(std::uint32_t state, const std::byte* p, std::size_t bytes) {
  return crc_folded<Ethernet, EthernetWords>(state, p, bytes);
}

std::uint32_t Times(std::uint32_t a, std::uint32_t b) {
#if NETSUM_CARRYLESS_PRODUCTS
  const CrcBlock d;
  // x^0 is the product's bit 62, and should be bit 63.
  return crc_rest<Ethernet>(hn::ShiftLeft<1>(hn::CLMulLower(hn::Set(d, a), hn::Set(d, b))));
#else
  return Ethernet::times(a, b);
#endif
}

}  // namespace netsum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum {

HWY_EXPORT(Crc32);
HWY_EXPORT(Times);

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t previous) {
  return ~HWY_DYNAMIC_DISPATCH(Crc32)(~previous, bytes.data(), bytes.size());
}

Crc32Shift::Crc32Shift(std::size_t bytes_of_b) : factor_(CrcPolynomial<0xedb88320>::power_of_x(0)) {
  std::uint32_t square = CrcPolynomial<0xedb88320>::power_of_x(8);
  for (; bytes_of_b != 0; bytes_of_b >>= 1) {
    if ((bytes_of_b & 1) != 0) factor_ = HWY_DYNAMIC_DISPATCH(Times)(factor_, square);
    square = HWY_DYNAMIC_DISPATCH(Times)(square, square);
  }
}

std::uint32_t Crc32Shift::combine(std::uint32_t a, std::uint32_t b) const {
  return HWY_DYNAMIC_DISPATCH(Times)(a, factor_) ^ b;  // the inversions of both CRCs cancel
}

}  // namespace netsum
#endif
