// Packets between a rank and a parameter server. All fields are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace netsum::baseline {

inline constexpr std::uint8_t magic = 0xb5;  // the first byte
inline constexpr std::size_t header_bytes = 40;
inline constexpr std::uint32_t max_workers = 64;
inline constexpr std::uint32_t max_packet_elements = 2048;

enum class Type : std::uint8_t {
  contribution = 1,  // of a rank: one chunk
  result,            // of the server: the sum
  waiting,           // of the server: it has the rank's contribution, and waits for `missing`
  mismatch,          // of the server: ranks `first` and `second` issued different calls
  unknown_job,       // of the server
};

struct Packet {
  Type type{};
  std::uint16_t rank = 0;  // that sends or receives it
  std::uint64_t job_epoch = 0;
  std::uint32_t rank_epoch = 0, signature = 0;
  std::uint64_t sequence = 0;  // of the chunk, on its lane
  bool floats = false;         // else integers, added modulo 2^32
  bool average = false;        // of floats: the server divides
  std::uint16_t elements = 0;  // of a contribution or result
  std::uint64_t missing = 0;   // ranks, as bits
  std::uint32_t first = 0, second = 0;
  std::span<const std::byte> values{};  // 4 * elements bytes
};

[[nodiscard]] std::size_t bytes_of(const Packet& packet);
// Writes a packet of bytes_of(packet) bytes. A contribution's or result's values are at `to + header_bytes` already if
// `packet.values` is empty.
void write(const Packet& packet, std::span<std::byte> to);
// None: it is damaged, or none of ours.
[[nodiscard]] std::optional<Packet> parse(std::span<const std::byte> bytes);

}  // namespace netsum::baseline
