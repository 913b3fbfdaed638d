// Tables and constants of a reflected 32-bit CRC, computed from its polynomial at compile time. Values are reflected: bit 31
// is x^0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace netsum {

template <std::uint32_t polynomial>
struct CrcPolynomial {
  static constexpr std::uint32_t times_x(std::uint32_t value) { return (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0); }

  // x^n modulo the polynomial.
  static constexpr std::uint32_t power_of_x(unsigned n) {
    std::uint32_t value = 0x80000000;
    for (; n > 0; --n) value = times_x(value);
    return value;
  }

  static constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (std::uint32_t bit = 0x80000000; bit != 0; bit >>= 1, b = times_x(b)) product ^= (a & bit) != 0 ? b : 0;
    return product;
  }

  // Slicing by 8: tables[k][b] is the CRC of byte b followed by k zero bytes.
  static constexpr auto tables = [] {
    std::array<std::array<std::uint32_t, 256>, 8> t{};
    for (std::uint32_t b = 0; b < 256; ++b) {
      std::uint32_t value = b;
      for (int bit = 0; bit < 8; ++bit) value = times_x(value);
      t[0][b] = value;
    }
    for (std::size_t k = 1; k < 8; ++k) {
      for (std::size_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xff];
    }
    return t;
  }();

  // Advances the state over more bytes with the tables, without inversions.
  static std::uint32_t table_words(std::uint32_t state, const std::byte* p, std::size_t bytes) {
    for (; bytes >= 8; bytes -= 8, p += 8) {
      const std::uint64_t word = load_le<std::uint64_t>(p) ^ state;
      state = 0;
      for (std::size_t i = 0; i < 8; ++i) state ^= tables[7 - i][word >> (8 * i) & 0xff];
    }
    if (bytes >= 4) {
      const std::uint32_t word = load_le<std::uint32_t>(p) ^ state;
      state = 0;
      for (std::size_t i = 0; i < 4; ++i) state ^= tables[3 - i][word >> (8 * i) & 0xff];
      bytes -= 4;
      p += 4;
    }
    for (; bytes > 0; --bytes, ++p) {
      state = (state >> 8) ^ tables[0][(state ^ std::to_integer<std::uint32_t>(*p)) & 0xff];
    }
    return state;
  }

  // Folding by `bits`: the factors of the lower and the upper half of a 128-bit block. A carry-less product of
  // reflected operands is one bit short, and the constant sits in the low half of its word: hence 31 and -33.
  struct FoldConstants {
    std::uint64_t lower, upper;
  };
  static constexpr FoldConstants fold_by(unsigned bits) { return {power_of_x(bits + 31), power_of_x(bits - 33)}; }

  // For Barrett's division: the polynomial itself, and x^64 divided by it. 33 bits: bit 32 is x^0.
  static constexpr std::uint64_t whole = std::uint64_t{polynomial} << 1 | 1;
  static constexpr std::uint64_t inverse = [] {
    std::uint64_t quotient = 0;
    std::uint32_t rest = 0x80000000;
    for (unsigned n = 1; n <= 64; ++n, rest = times_x(rest)) {
      if ((rest & 1) != 0) quotient |= std::uint64_t{1} << (n - 32);
    }
    return quotient;
  }();
};

}  // namespace netsum
