// Types of values in packets beyond those of tensors.
#pragma once

#include <cstddef>

#include "netsum/types.h"

namespace netsum {

// Floats of 8 bits (docs/numerics.md, "8 bits"). Blocks of 64 values, the last one maybe shorter, are a byte with the
// exponent of the largest, and a byte for each value, in 64ths of that power of two. Elements of a packet are its bytes.
inline constexpr DType block8 = static_cast<DType>(0x80);
static_assert(bytes_of(block8) == 1);
inline constexpr std::size_t block8_values = 64;
[[nodiscard]] constexpr std::size_t block8_bytes(std::size_t count) {
  return count + (count + block8_values - 1) / block8_values;
}
// The most values whose blocks take at most so many bytes, in whole blocks.
[[nodiscard]] constexpr std::size_t block8_values_in(std::size_t bytes) {
  return bytes / (block8_values + 1) * block8_values;
}

// Whether values are added in rank order, once all ranks' are there: their sum depends on the order.
[[nodiscard]] constexpr bool added_in_order(DType in_packets) {
  return is_float(in_packets) || in_packets == block8;
}

}  // namespace netsum
