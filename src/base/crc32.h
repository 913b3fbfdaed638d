// CRC-32 (zlib's and Ethernet's: reflected polynomial 0xedb88320, initial value and final xor ~0), of which RoCEv2's ICRC is
// made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum {

// The CRC of `previous`'s bytes followed by `bytes`; crc32({}) is 0, crc32("123456789") is 0xcbf43926.
[[nodiscard]] std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t previous = 0);

// The CRC of a's bytes followed by b's, from those of each: where many packets differ in their headers alone. Cheap once a
// Crc32Shift for the length of b is there.
class Crc32Shift {
 public:
  explicit Crc32Shift(std::size_t bytes_of_b);
  [[nodiscard]] std::uint32_t combine(std::uint32_t a, std::uint32_t b) const;

 private:
  std::uint32_t factor_;  // x^(8 * bytes) modulo the polynomial
};

}  // namespace netsum
