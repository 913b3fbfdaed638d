// What SwitchML's messages over RoCEv2 UC have in RDMA's headers: docs/protocol-switchml-rdma.md is their specification.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "wire/roce.h"

namespace netsum::wire::rdma {

inline constexpr std::uint32_t packet_elements = 256, max_packets = 16;  // of a packet; of a message
inline constexpr std::size_t packet_bytes = std::size_t{packet_elements} * 4;
static_assert(roce::is_path_mtu(packet_bytes));

// Packets of a job's longest message, which has so many elements.
[[nodiscard]] constexpr std::uint32_t packets_of(std::uint32_t elements) {
  return (elements + packet_elements - 1) / packet_elements;
}
[[nodiscard]] constexpr bool possible_message(std::uint32_t elements) {
  return elements != 0 && elements % packet_elements == 0 && elements <= max_packets * packet_elements &&
         std::has_single_bit(elements);
}
// Which of the two exponents a packet's values have, and how many packets have one.
[[nodiscard]] constexpr std::uint32_t packets_of_block(std::uint32_t longest) {
  return longest == 1 ? 1 : longest / 2;
}

// A request's R_Key: a round's number in its slots. Versions take turns, so numbers follow each other.
[[nodiscard]] constexpr std::uint32_t number_of(std::uint32_t round, std::uint8_t version) {
  return round << 1 | version;
}

// A request's address.
struct Target {
  std::uint32_t call = 0;    // 24 bits of what ranks must agree on
  std::uint64_t offset = 0;  // in the rank's memory, 40 bits
  bool operator==(const Target&) const = default;
};
inline constexpr unsigned offset_bits = 40;
inline constexpr std::uint64_t max_offset = (std::uint64_t{1} << offset_bits) - 1;
[[nodiscard]] constexpr std::uint64_t address_of(const Target& target) {
  return std::uint64_t{target.call} << offset_bits | target.offset;
}
[[nodiscard]] constexpr Target target_of(std::uint64_t address) {
  return {static_cast<std::uint32_t>(address >> offset_bits), address & max_offset};
}

// Exponents are the chip profile's, of 9 bits. A result's first from here on: the calls of two members differ, of number
// first - differing and of number second.
inline constexpr std::uint16_t differing = 257;

struct Immediate {
  std::uint32_t number = 0;  // 14 bits of it
  std::array<std::uint16_t, 2> exponents{};
  bool operator==(const Immediate&) const = default;
};
inline constexpr std::uint32_t number_mask = (1U << 14) - 1, exponent_mask = (1U << 9) - 1;
[[nodiscard]] constexpr std::uint32_t immediate_of(const Immediate& value) {
  return (value.number & number_mask) << 18 | (value.exponents[0] & exponent_mask) << 9 |
         (value.exponents[1] & exponent_mask);
}
[[nodiscard]] constexpr Immediate read_immediate(std::uint32_t bits) {
  return {bits >> 18,
          {static_cast<std::uint16_t>(bits >> 9 & exponent_mask), static_cast<std::uint16_t>(bits & exponent_mask)}};
}

// A packet's opcode.
[[nodiscard]] constexpr roce::Opcode opcode_of(std::uint32_t packet, std::uint32_t packets) {
  using enum roce::Opcode;
  if (packets == 1) return uc_write_only_immediate;
  if (packet == 0) return uc_write_first;
  return packet + 1 == packets ? uc_write_last_immediate : uc_write_middle;
}

}  // namespace netsum::wire::rdma
