// The packets of SwitchML's chip profile over UDP: docs/protocol-switchml-chip.md is their specification.
//
// What a chip's parser has to read stands first, at fixed places and in network order; what is of the workers alone stands
// behind it, and a switch only echoes it. There is no checksum: Ethernet's is all that protects these packets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/parse_error.h"
#include "wire/switchml.h"
#include "wire/switchml_chip_layout.h"

namespace netsum::wire::chip {

// The first byte: no version of SwitchML's other format, nor ATP's or an IP header's.
inline constexpr std::uint8_t format = chip_format;
// Where the filter against floods looks (runtime/flood_gate.cc), as in SwitchML's other format.
inline constexpr std::size_t at_format = 0, at_job_epoch = 8;
static_assert(at_format == switchml::at_version && at_job_epoch == switchml::at_job_epoch);

inline constexpr std::uint32_t max_members = chip_max_members;
[[nodiscard]] constexpr bool possible_packet(std::uint32_t elements) {
  return elements == chip_few_elements || elements == chip_many_elements;
}
// A slot version's rounds are 0 ... max_round: registers hold twice a round, and twice the one after it.
inline constexpr std::uint32_t max_round = chip_max_round;

// Exponents: 0 ... 254 as in SwitchML's other format, so that the largest wins if a rank has one of these.
inline constexpr std::uint16_t not_finite = chip_not_finite;     // the block has an element that is not finite
inline constexpr std::uint16_t unknown = chip_unknown_exponent;  // the sender does not know its next block

enum class Type : std::uint8_t {
  contribution = chip_contribution,  // upstream: of a worker, or the sum of all ranks below a switch
  result = chip_result,              // downstream
};

// What a round is for.
enum class Kind : std::uint16_t { values = 0, exponents = 1 };

// Nothing to a switch: sums and results have those of the contribution that completed their round, or that asked for them
// again.
struct Echoed {
  std::uint64_t operation = 0;
  std::uint32_t chunk = 0;
  std::uint32_t signature = 0;
  std::uint32_t ahead_chunk = 0;  // the exponents are for operation + ahead_operation, chunk ahead_chunk
  std::uint16_t ahead_operation = switchml::no_ahead;
  std::uint16_t kind = 0;  // Kind
  bool operator==(const Echoed&) const = default;
};

struct Header {
  Type type = Type::contribution;
  std::uint8_t member = 0;  // contribution: the sender's bit; result: of no use
  std::uint8_t version = 0;
  std::uint16_t slot = 0;
  std::uint16_t rank = 0;  // that contributed; echoed
  std::uint64_t job_epoch = 0;
  std::uint32_t round = 0;                   // of this version of the slot
  std::array<std::uint16_t, 2> exponents{};  // contribution: the sender's; result: the largest of all ranks
  Echoed echoed;
  bool operator==(const Header&) const = default;
};

inline constexpr std::size_t header_bytes = chip_header_bytes;
[[nodiscard]] constexpr std::size_t packet_bytes(std::uint32_t elements) {
  return header_bytes + std::size_t{elements} * 4;
}

struct Packet {
  Header header;
  std::span<const std::byte> payload;  // 64 or 256 int32 in network order
};

[[nodiscard]] ParseError parse(std::span<const std::byte> bytes, Packet& out);
void write_header(std::span<std::byte> packet, const Header& header);

}  // namespace netsum::wire::chip
