// UDP packets of p4lang/p4app-switchML, the SwitchML that the paper's authors published: docs/protocol-p4app.md. Both
// directions have this format. Values are int32 in network order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/parse_error.h"

namespace netsum::wire::p4app {

inline constexpr std::uint16_t switch_port = 48864, first_worker_port = 4000;
inline constexpr std::size_t header_bytes = 10;
inline constexpr std::uint32_t max_slots = 8192, max_workers = 32;

// The two packet sizes that their switch sums, as `size` in packets and in their control service.
inline constexpr std::uint8_t size_256_bytes = 1, size_1024_bytes = 3;
// 0: they sum no packets of that size.
[[nodiscard]] constexpr std::uint32_t elements_of(std::uint64_t size) {
  return size == size_256_bytes ? 64 : size == size_1024_bytes ? 256 : 0;
}
[[nodiscard]] constexpr std::uint8_t size_of(std::uint32_t elements) {
  return elements == 64 ? size_256_bytes : size_1024_bytes;
}
[[nodiscard]] constexpr std::size_t packet_bytes(std::uint32_t elements) {
  return header_bytes + std::size_t{elements} * 4;
}

struct Header {
  std::uint32_t elements = 256;  // 64 or 256
  std::uint8_t job = 0;          // low bits of a job's number
  std::uint32_t packet = 0;      // its number in the job; switches hand it back as it is
  std::uint16_t slot = 0;        // below 2^14
  bool set = false;
  std::array<std::int8_t, 2> exponents{};
};

struct Packet {
  Header header;
  std::span<const std::byte> payload;
};

[[nodiscard]] ParseError parse(std::span<const std::byte> bytes, Packet& packet);
// Into the first bytes of a packet.
void write_header(std::span<std::byte> packet, const Header& header);

}  // namespace netsum::wire::p4app
