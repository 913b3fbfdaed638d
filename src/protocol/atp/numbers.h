// Gradient packet addition, identical at every switch and at the parameter server (ATP §3.8; docs/protocol-atp.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"
#include "wire/atp.h"

namespace netsum::atp {

// How a job's sums are kept.
enum class Overflow : std::uint8_t {
  exact,       // wide sums: whether the float values are needed depends only on the sum
  saturating,  // as in §3.8: whether they are needed also depends on the order of arrival
};

// How losses and collisions are met (docs/protocol-atp.md).
enum class Rules : std::uint8_t {
  netsum,
  paper,  // Figures 7 and 17 and §3.7 as printed: for comparison
  chip,   // netsum's, at ranks that keep to what a chip can sum
};

// No sum of so many ranks' values leaves int32 if none is beyond this: then a chip need not notice (§B.2's threshold).
[[nodiscard]] constexpr std::uint32_t largest_of(std::uint32_t ranks) {
  return INT32_MAX / ranks;
}

// Whether a packet with this header can belong to a job with this packet length and overflow mode.
[[nodiscard]] inline bool possible(const wire::atp::Common& common, std::uint32_t packet_elements, Overflow overflow) {
  return common.elements <= packet_elements && !(common.wide && overflow == Overflow::saturating);
}

// The factor by which floats are multiplied before rounding to integers.
enum class Scaling : std::uint8_t {
  fixed,    // 10^8, always (§3.8)
  dynamic,  // smaller if the largest value of a block, announced by the ranks one window earlier, would not fit (§B.3)
};

// What a worker sends before it knows its path: 200 packets of 300 bytes (§3.7).
inline constexpr std::uint64_t first_window_bytes = 60'000;

// From so many waiting bytes on, as the kernel counts its memory, a node's queue is long, and marks (§3.7): as many as the
// windows of the ranks that may send to it have, which is two thirds of their memory; so long paths' bursts, of less than
// what they hold, are not taken for a queue. Four first windows at least, which a late thread finds, and 64 packets.
[[nodiscard]] constexpr std::uint64_t long_queue_bytes(std::uint64_t ranks, std::uint32_t packet_elements,
                                                       std::uint32_t window) {
  const std::uint64_t packet = std::uint64_t{4} * packet_elements;
  return ranks * std::max({4 * first_window_bytes, 64 * packet, window * packet});
}

// Elements with one scale, where it is dynamic, from the tensor's start on. No chunk is in two of them, so that the bits do
// not depend on how long packets are.
inline constexpr std::uint32_t scale_block = 8192;

// A partial sum: int32 words at `values`, directly followed by int16 high words if it is wide.
struct Sum {
  std::byte* values = nullptr;
  std::uint16_t elements = 0;  // 0: only empty contributions so far
  bool wide = false;
  bool overflow = false;      // sticky
  std::uint8_t exponent = 0;  // the largest received

  [[nodiscard]] std::byte* high() const { return values + std::size_t{elements} * 4; }
};

// False, with nothing changed, if the packet's length differs from the sum's.
[[nodiscard]] inline bool add_to(Sum& sum, const wire::atp::GradientPacket& gradient, Overflow overflow) {
  const wire::atp::Common& common = gradient.common;
  if (common.elements != 0 && sum.elements != 0 && sum.elements != common.elements) return false;
  sum.overflow |= common.overflow;
  sum.exponent = std::max(sum.exponent, common.exponent);
  if (common.elements == 0) return true;
  if (sum.elements == 0) {
    sum.elements = common.elements;
    sum.wide = common.wide;
    std::memcpy(sum.values, gradient.payload.data(), gradient.payload.size());
    if (common.wide) std::memcpy(sum.high(), gradient.high.data(), gradient.high.size());
    return true;
  }
  if (common.integers) {
    kernels::add_int32(sum.values, gradient.payload.data(), sum.elements);
  } else if (overflow == Overflow::saturating) {
    sum.overflow |= kernels::add_int32_saturating(sum.values, gradient.payload.data(), sum.elements);
  } else {
    const bool left = kernels::add_int32_checked(sum.values, gradient.payload.data(), sum.elements);
    if ((left || common.wide) && !sum.wide) {
      std::memset(sum.high(), 0, wire::atp::high_bytes(sum.elements));
      sum.wide = true;
    }
    if (left) kernels::carry_int32(sum.high(), sum.values, gradient.payload.data(), sum.elements);
    if (common.wide) kernels::add_int16(sum.high(), gradient.high.data(), sum.elements);
  }
  return true;
}

}  // namespace netsum::atp
