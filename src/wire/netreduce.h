// NetReduce's part of a RoCEv2 message: the INA header in front of it (NetReduce Fig. 4) and the seals in each of its
// packets. docs/protocol-netreduce.md is the specification, byte by byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "netsum/types.h"

namespace netsum::wire::netreduce {

inline constexpr std::uint32_t version = 0x4e520002;  // sent in the control protocol's join
inline constexpr std::uint32_t max_workers = 4096;
inline constexpr std::uint32_t max_message_packets = 4096;
inline constexpr std::uint32_t max_window = 1024;  // messages

struct InaHeader {
  std::uint32_t ring = 0;       // RingID
  std::uint32_t rank = 0;       // of the sender in the ring
  std::uint64_t message = 0;    // MsgID: position in the ring's stream; never wraps
  std::uint32_t packets = 0;    // MsgLen: packets of this message, at most the ring's
  std::uint32_t signature = 0;  // of the call and the message's place in it; 0 if the layout has none
  DType dtype = DType::float32;
  bool average = false;  // the sum is divided by the number of contributions before it is rounded
  bool operator==(const InaHeader&) const = default;
};

// Where a host puts those fields: foreign hosts use different headers.
struct Layout {
  struct Field {
    std::uint32_t offset = 0, bytes = 0;  // in the message; 0 bytes: the host has no such field
  };
  const char* name = "custom";
  bool seals = false;  // each packet's payload begins with a seal
  bool big_endian = false;
  std::uint32_t magic_offset = 0, magic_bytes = 0;  // InetTag
  std::array<std::byte, 16> magic{};
  Field ring, rank, message, packets, signature, dtype, flags;
  std::uint32_t header_bytes = 0;  // of the first packet's payload, the seal included: not summed
};
inline constexpr Layout netsum_layout = {
    .name = "netsum",
    .seals = true,
    .magic_offset = 8,
    .magic_bytes = 4,
    .magic = {std::byte{'N'}, std::byte{'S'}, std::byte{'n'}, std::byte{'r'}},
    .ring = {16, 4},
    .rank = {20, 4},
    .message = {24, 8},
    .packets = {14, 2},
    .signature = {32, 4},
    .dtype = {12, 1},
    .flags = {13, 1},
    .header_bytes = 40,
};
// The layout of a test ring without seals, recorded in tests/data/roce.
inline constexpr Layout nrtv_layout = {
    .name = "nrtv",
    .magic_bytes = 4,
    .magic = {std::byte{'N'}, std::byte{'R'}, std::byte{'t'}, std::byte{'v'}},
    .ring = {4, 2},
    .rank = {6, 2},
    .message = {8, 4},
    .packets = {12, 4},
    .signature = {},
    .dtype = {},
    .flags = {},
    .header_bytes = 16,
};
// A built-in layout by name ("netsum", "nrtv"), or one as text:
// "magic=4e527476@0,ring=4:2,rank=6:2,message=8:4,packets=12:4,header=16,endian=little,seals=no"; throws Error:
// bad_argument.
[[nodiscard]] Layout parse_layout(const std::string& text);

// Whether the payload of a message's first packet has the layout's magic in its place.
[[nodiscard]] bool has_mark(const Layout& layout, std::span<const std::byte> payload);
// The header of a message's first packet; none: the payload does not begin with one.
[[nodiscard]] std::optional<InaHeader> read_header(const Layout& layout, std::span<const std::byte> payload);
void write_header(const Layout& layout, std::span<std::byte> payload, const InaHeader& header);

// Extends a message ID with `bits` bits on the wire to the full ID nearest to `near`.
[[nodiscard]] std::uint64_t extend_message(std::uint64_t wire, std::uint32_t bits, std::uint64_t near);

// Seals: zero when the host sends them, filled in by the accelerator. A packet with an unexpected seal holds no sum of this
// message.
inline constexpr std::size_t seal_bytes = 8;
struct Seal {
  std::uint64_t incarnation = 0;  // of the ring at the accelerator: random, never issued again
  std::uint32_t ring = 0;
  std::uint64_t message = 0;
  std::uint32_t packet = 0;         // of the message
  std::uint32_t contributions = 0;  // in the sum
};
// Low 16 bits: the contributions; the rest: a digest of all fields. Never 0.
[[nodiscard]] std::uint64_t seal_of(const Seal& seal);
void write_seal(std::span<std::byte> payload, const Seal& seal);
[[nodiscard]] std::uint64_t read_seal(std::span<const std::byte> payload);

}  // namespace netsum::wire::netreduce
