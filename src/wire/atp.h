// The ATP format over UDP: docs/protocol-atp.md is its specification, byte by byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "wire/parse_error.h"

namespace netsum::wire::atp {

// Not a version of SwitchML's format: one socket may take both.
inline constexpr std::uint8_t version = 0xa3;
inline constexpr std::size_t common_bytes = 40;
// Offsets of a packet's type and job, for a filter that runs before any parser.
inline constexpr std::size_t at_version = 0, at_type = 1, at_job_epoch = 8;
inline constexpr std::uint32_t max_levels = 4;   // of aggregation, the parameter server included
inline constexpr std::uint32_t max_fan_in = 32;  // of one level: the bits of a bitmap
inline constexpr std::uint32_t max_workers = 1024;
inline constexpr std::uint32_t max_packet_elements = 10880;  // as wide sums, 65340 bytes: below UDP's limit over IPv6
inline constexpr std::uint8_t max_exponent = 254;            // biased, of a finite float32

using Ranks = BasicRankSet<max_workers>;

enum class Type : std::uint8_t {
  gradient = 1,   // up: one rank's values, or the sum of several
  parameter = 2,  // down: the sum of all (the paper's isAck)
  ask = 3,        // down: retransmit this one straight to the parameter server
  done = 4,       // down: a sequence number that all have long received; frees slots
  waiting = 5,    // parameter server -> worker: "have yours, waiting for ranks ..."
  mismatch = 6,   // parameter server -> workers: two ranks issued different calls
  unknown_job = 7,
};

// The fields of every packet. A field that a type does not use is 0.
struct Common {
  Type type{};
  bool resend = false;     // gradient: sent before; no switch takes it up (§3.7)
  bool ecn = false;        // this packet, or one in its sum, experienced congestion
  bool collision = false;  // gradient: a switch had no free slot for it
  bool overflow = false;   // gradient: a value did not fit int32; sticky
  bool wide = false;       // gradient: int16 high words follow the values
  bool direct = false;     // gradient: for the parameter server alone; no switch touches it
  bool floats = false;     // gradient, parameter: values are float32; ask: send them so (§3.8)
  bool average = false;    // gradient with floats: the server divides the sum by the number of ranks before it rounds
  bool unchecked = false;  // gradient, parameter: there is no checksum; no packet in its sum had one
  bool integers = false;   // gradient: no floats behind the values; they are added modulo 2^32 as they are
  std::uint64_t job_epoch = 0;
  std::uint64_t sequence = 0;    // of the chunk in the job's stream on this lane; never wraps
  std::uint32_t rank_epoch = 0;  // of the sender's life; in sums and downward packets: all ranks' folded
  std::uint32_t signature = 0;   // of the call and its place in the stream
  std::uint32_t index = 0;       // aggregatorIndex
  std::uint16_t elements = 0;
  // Of the block of the chunk one window later (§B.3), in floats of the chunk's own; 0: unknown, or always the same scale.
  std::uint8_t exponent = 0;
  bool operator==(const Common&) const = default;
};

// The packet's directions (§3.3), one entry per level of aggregation: worker's switch, ..., parameter server.
struct Directions {
  std::uint8_t level = 0;                         // next level on the way (edgeSwitchIdentifier)
  std::array<std::uint8_t, max_levels> fan_in{};  // children that the level waits for
  std::array<std::uint32_t, max_levels>
      bitmap{};  // below `level`: the sum's contributions; from `level` on: one bit, the sending child
  bool operator==(const Directions&) const = default;
};

struct GradientPacket {
  Common common;
  Directions directions;
  std::span<const std::byte> payload, high;  // high: int16 words, empty unless wide
};
inline constexpr std::size_t gradient_header_bytes = common_bytes + 20;

// parameter, ask, done.
struct ParameterPacket {
  Common common;
  std::uint32_t next_index = 0;  // parameter: the index for the sequence number one window later (§3.6)
  std::span<const std::byte> payload;
};
inline constexpr std::size_t parameter_header_bytes = common_bytes + 4;

struct WaitingPacket {
  Common common;
  Ranks missing;
};
inline constexpr std::size_t waiting_bytes = common_bytes + max_workers / 8;

struct MismatchPacket {
  Common common;
  std::uint32_t first_signature = 0, second_signature = 0;
  std::uint16_t first_rank = 0, second_rank = 0;
};
inline constexpr std::size_t mismatch_bytes = common_bytes + 12;

// int16 words, padded to whole int32.
[[nodiscard]] constexpr std::size_t high_bytes(std::size_t elements) {
  return (elements + 1) / 2 * 4;
}
[[nodiscard]] constexpr std::size_t gradient_bytes(const Common& common) {
  return gradient_header_bytes + std::size_t{common.elements} * 4 + (common.wide ? high_bytes(common.elements) : 0);
}
[[nodiscard]] constexpr std::size_t parameter_bytes(const Common& common) {
  return parameter_header_bytes + std::size_t{common.elements} * 4;
}

// Version, type, checksum and the common fields are checked here once; the typed parsers check the rest and the length.
[[nodiscard]] ParseError parse_common(std::span<const std::byte> bytes, Common& out);
[[nodiscard]] ParseError parse_gradient(std::span<const std::byte> bytes, const Common& common, GradientPacket& out);
[[nodiscard]] ParseError parse_parameter(std::span<const std::byte> bytes, const Common& common, ParameterPacket& out);
[[nodiscard]] ParseError parse_waiting(std::span<const std::byte> bytes, const Common& common, WaitingPacket& out);
[[nodiscard]] ParseError parse_mismatch(std::span<const std::byte> bytes, const Common& common, MismatchPacket& out);

// Writers of headers. The caller fills in the rest and calls seal() last, which writes the checksum, if there is to be one.
void write_gradient_header(std::span<std::byte> packet, const Common& common, const Directions& directions);
void write_parameter_header(std::span<std::byte> packet, const Common& common, std::uint32_t next_index);
void seal(std::span<std::byte> packet);
void write_waiting(std::span<std::byte> packet, const WaitingPacket& waiting);
void write_mismatch(std::span<std::byte> packet, const MismatchPacket& mismatch);
void write_unknown_job(std::span<std::byte> packet, const Common& asked);  // common_bytes; echoes both epochs

}  // namespace netsum::wire::atp
