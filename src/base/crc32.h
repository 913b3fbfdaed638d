// CRC-32 (zlib's and Ethernet's: reflected polynomial 0xedb88320, initial value and final xor ~0), the base of RoCEv2's
// ICRC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum {

// The CRC of `previous`'s bytes followed by `bytes`; crc32({}) is 0, crc32("123456789") is 0xcbf43926.
[[nodiscard]] std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t previous = 0);

// Combines the CRCs of a and b into that of a's bytes followed by b's, for packets that differ only in their headers. Cheap
// once the Crc32Shift for b's length is made.
class Crc32Shift {
 public:
  explicit Crc32Shift(std::size_t bytes_of_b);
  [[nodiscard]] std::uint32_t combine(std::uint32_t a, std::uint32_t b) const;

 private:
  std::uint32_t factor_;  // x^(8 * bytes) modulo the polynomial
};

}  // namespace netsum
