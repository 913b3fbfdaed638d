// Types of values in packets beyond those of tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "netsum/types.h"

namespace netsum {

// Floats of 8 and of 4 bits (docs/numerics.md, "8 bits"). Blocks of 64 values, the last one maybe shorter, are a byte with
// the exponent of the largest, and a byte for each value, in 64ths of that power of two, or half a byte, in quarters of it.
// Elements of a packet are its bytes. Sums of both have 8 bits.
inline constexpr DType block8 = static_cast<DType>(0x80), block4 = static_cast<DType>(0x81);
static_assert(bytes_of(block8) == 1 && bytes_of(block4) == 1);
inline constexpr std::size_t block_values = 64;
[[nodiscard]] constexpr bool has_blocks(DType in_packets) {
  return in_packets == block8 || in_packets == block4;
}
[[nodiscard]] constexpr std::size_t block_bytes(DType in_packets, std::size_t count) {
  return (in_packets == block4 ? (count + 1) / 2 : count) + (count + block_values - 1) / block_values;
}
// The most values whose sum's blocks take at most so many bytes, in whole blocks.
[[nodiscard]] constexpr std::size_t block_values_in(std::size_t bytes) {
  return bytes / (block_values + 1) * block_values;
}
// Elements of a sum's packet, of those of each contribution.
[[nodiscard]] constexpr std::size_t elements_of_sum(DType in_packets, std::size_t elements) {
  constexpr std::size_t each = block_values / 2 + 1;
  return in_packets != block4 ? elements : 2 * elements - (elements + each - 1) / each;
}

// Whether values are added in rank order, once all ranks' are there: their sum depends on the order.
[[nodiscard]] constexpr bool added_in_order(DType in_packets) {
  return is_float(in_packets) || has_blocks(in_packets);
}

// Exact sums of floats of 16 bits or fewer, which switches in a tree send one another in parts (kernels/exact_sum.h): planes
// of digits, each from one bit on, and masks.
struct SumParts {
  // Bits; of a plane's lowest: 4,096 of the largest bfloat16 end there, if the lowest plane begins one bit above a limb.
  static constexpr std::uint32_t limbs = 9, most_place = limbs * 32 - 15;
  static constexpr std::uint32_t masks = 0xffff;  // in a place's stead
  static constexpr std::size_t most = limbs * 4 + 1;

  // Whether switches in a tree add values so.
  [[nodiscard]] static constexpr bool of(DType in_packets, ReduceOp op) {
    const bool halves = in_packets == DType::float16 || in_packets == DType::bfloat16;
    return (halves && op != ReduceOp::product) || has_blocks(in_packets);
  }
  // Values in so many elements of a contribution, and bytes of a part of their sum.
  [[nodiscard]] static constexpr std::size_t values_in(DType in_packets, std::size_t elements) {
    if (!has_blocks(in_packets)) return elements;
    const std::size_t each = in_packets == block4 ? block_values / 2 + 1 : block_values + 1;
    return (elements - (elements + each - 1) / each) * (in_packets == block4 ? 2 : 1);
  }
  [[nodiscard]] static constexpr std::size_t bytes(DType in_packets, std::size_t elements, std::uint32_t place) {
    const std::size_t values = values_in(in_packets, elements);
    return place == masks ? 3 * ((values + 7) / 8) : values * (has_blocks(in_packets) ? 1 : 2);
  }
};

}  // namespace netsum
