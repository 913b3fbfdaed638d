// The Internet's checksum, of IPv4's and UDP's headers (RFC 1071).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"

namespace netsum::wire {

// A one's complement sum, in this host's byte order. Adds 32 bits at a time, which gives the same sum.
[[nodiscard]] inline std::uint64_t sum_words(std::span<const std::byte> bytes, std::uint64_t sum = 0) {
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 4; left -= 4, p += 4) sum += load_le<std::uint32_t>(p);
  std::byte rest[4] = {};
  std::memcpy(rest, p, left);
  return sum + load_le<std::uint32_t>(rest);
}

// The checksum of a sum, to be stored in this host's byte order.
[[nodiscard]] inline std::uint16_t checksum_of(std::uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

}  // namespace netsum::wire
