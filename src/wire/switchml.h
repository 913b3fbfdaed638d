// The native SwitchML format over UDP: docs/protocol-switchml.md is its specification, byte by byte.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>

#include "base/bitmap.h"
#include "base/bytes.h"
#include "netsum/types.h"
#include "wire/epochs.h"
#include "wire/parse_error.h"

namespace netsum::wire::switchml {

inline constexpr std::uint8_t version = 3;
inline constexpr std::uint32_t max_workers = 4096;
using Ranks = BasicRankSet<max_workers>;
inline constexpr std::size_t common_bytes = 20;
// Offsets of docs/protocol-switchml.md, "Common header" and below, also for a filter that runs before any parser.
inline constexpr std::size_t at_version = 0, at_type = 1, at_sender = 2, at_checksum = 4, at_job_epoch = 8,
                             at_rank_epoch = 16;
inline constexpr std::size_t at_chunk = 20, at_operation = 24;  // in every packet about a chunk
inline constexpr std::size_t at_signature = 32, at_ahead_chunk = 36, at_ahead_operation = 40, at_values = 41, at_slot = 42,
                             at_elements = 44, at_exponents = 46, at_flags = 47;
inline constexpr std::uint8_t flag_version = 1, flag_masks = 2, flag_acknowledge = 4, flag_later = 8, flag_due = 16;
// What protects a packet: the high bits of its type's byte.
inline constexpr int integrity_shift = 4;
inline constexpr std::uint8_t unprotected = 0, checksummed = 1, tagged = 2, encrypted = 3;
inline constexpr std::uint8_t type_bits = 0x0f;        // of the type's byte; the others say what protects the packet
inline constexpr std::size_t chunk_header_bytes = 48;  // with the common part
inline constexpr std::uint32_t block_elements = 256;   // elements that share one exponent (the same for every packet length)
inline constexpr std::uint32_t max_packet_elements =
    15360;  // with exponents and masks, 65388 bytes: below UDP's limit over IPv6
inline constexpr std::uint32_t max_blocks = max_packet_elements / block_elements;
// Packets of up to 1024 elements, where headers weigh, have any multiple of 64 elements and may share blocks. Longer ones
// have whole blocks.
// Of private sums, behind the values, and added as these are: a hash, which the ranks compare with that of the sum.
inline constexpr std::uint32_t check_words = 3;
// Of packets with so many elements of 32 bits. Sums of int32 may be block fixed point, or a broadcast's words.
[[nodiscard]] constexpr std::size_t most_payload_bytes(std::uint32_t packet_elements, DType dtype, ReduceOp op) {
  const bool checked = dtype == DType::int32 && op == ReduceOp::sum;
  return (std::size_t{packet_elements} + (checked ? check_words : 0)) * 4;
}
inline constexpr std::uint32_t packet_step = 64, most_sharing_blocks = 1024;
[[nodiscard]] constexpr bool possible_packet(std::uint32_t elements) {
  const std::uint32_t step = elements <= most_sharing_blocks ? packet_step : block_elements;
  return elements > 0 && elements <= max_packet_elements && elements % step == 0;
}
// The most blocks that a packet's elements belong to: it may begin at any multiple of the gcd of its length and a block's.
[[nodiscard]] constexpr std::uint32_t blocks_of_packet(std::uint32_t elements) {
  const std::uint32_t latest = block_elements - std::gcd(elements, block_elements);
  return (latest + elements + block_elements - 1) / block_elements;
}
inline constexpr std::uint8_t no_ahead = 0xff;  // ChunkHeader::ahead_operation: the sender does not know its next block

enum class Type : std::uint8_t {
  contribution = 1,           // upstream: exponents of the look-ahead, values of one chunk: a rank's, or a switch's sum
  exponent_contribution = 2,  // upstream: exponents of this chunk, no values (the exponent-only round)
  result = 3,                 // downstream
  exponent_result = 4,
  waiting = 5,      // downstream: "have yours, waiting for ranks ..."
  mismatch = 6,     // downstream: two ranks issued different calls as this operation
  unknown_job = 7,  // to the sender: no such job epoch here
  probe = 8,        // worker -> switch, before joining: measures round trip and bandwidth
  probe_reply = 9,
  missing = 10,          // upstream, from a switch that was asked for its sum: waiting for ranks ...
  acknowledgement = 11,  // downstream: a result without its values, to those that did not want them
  // Runs: several chunks' packets of one kind, which have no values.
  empty_contributions = 12,
  acknowledgements = 13,
  sum_part = 14,  // upstream, from a switch: a part of its sum of short floats
};
inline constexpr auto last_type = static_cast<std::uint8_t>(Type::sum_part);

struct Common {
  Type type{};
  std::uint16_t sender;  // upstream: the rank, or the lowest rank below the switch; downstream 0
  std::uint64_t job_epoch;
  std::uint32_t rank_epoch;  // of a rank: its epoch; of a switch: all ranks' epochs, folded (fold_epochs)
  bool checked = true;       // by a checksum or a seal; packets about chunks may omit it on a host's loopback
  // A seal is behind the packet, and no checksum in it. Who has the key opens it before anything else is believed, and only
  // then calls the typed parsers, without the seal.
  PacketSecurity security = PacketSecurity::none;
  bool operator==(const Common&) const = default;
};

// The fields of every packet about one chunk.
struct ChunkHeader {
  std::uint64_t operation = 0;
  std::uint32_t chunk = 0;
  std::uint32_t signature = 0;
  std::uint16_t slot = 0;
  std::uint8_t version = 0;                 // 0 or 1
  bool masks = false;                       // the payload is followed by the masks of elements that are not finite
  std::uint8_t exponents = 0;               // exponent bytes after the header
  std::uint16_t elements = 0;               // values of payload
  std::uint8_t ahead_operation = no_ahead;  // the exponents are for operation + ahead_operation, chunk ahead_chunk
  std::uint32_t ahead_chunk = 0;
  DType dtype = DType::int32;     // of the payload
  ReduceOp op = ReduceOp::sum;    // how the switch combines values; avg, of floats: it divides before it rounds
  bool acknowledge_only = false;  // upstream: the sender wants no values back
  bool later = false;             // and is content if it is told with a later chunk that it wants none of
  bool due = false;               // upstream, of a switch that wants values: what it is yet to be told of others is due now
  bool operator==(const ChunkHeader&) const = default;
};

[[nodiscard]] constexpr std::size_t padded_exponents(std::size_t count) {
  return (count + 3) / 4 * 4;
}
[[nodiscard]] constexpr std::size_t mask_bytes(std::size_t elements) {
  return (elements + 7) / 8;
}
[[nodiscard]] constexpr std::size_t chunk_packet_bytes(const ChunkHeader& header) {
  return chunk_header_bytes + padded_exponents(header.exponents) + header.elements * bytes_of(header.dtype) +
         (header.masks ? 2 * mask_bytes(header.elements) : 0);
}

// A block's largest exponent is no infinity's; padding is 0.
[[nodiscard]] inline bool valid_exponents(const std::byte* exponents, std::size_t count) {
  for (std::size_t at = 0; at < count; at += 4) {  // by words, which the padding fills
    const auto word = load_le<std::uint32_t>(exponents + at);
    const std::uint32_t used = count - at < 4 ? (1U << 8 * (count - at)) - 1 : ~0U;
    if ((word & ~used) != 0 || ((~word - 0x01010101U) & word & 0x80808080U) != 0) return false;
  }
  return true;
}

struct ChunkPacket {
  Common common;
  ChunkHeader header;
  std::span<const std::byte> exponents, payload, masks;  // masks: `up` then `down` (kernels.h)
};

// Chunks whose packets have no values and follow from the first one's: member j has j more in its chunk, its slot and the
// look-ahead's chunk.
struct Run {
  static constexpr std::uint32_t most = 16;

  ChunkHeader first;
  std::uint16_t members = 0, versions = 0;  // bit j: of member j; the first is a member

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(std::popcount(members)); }
  [[nodiscard]] std::uint32_t last_slot() const {
    return first.slot + static_cast<std::uint32_t>(std::bit_width(members)) - 1;
  }
  [[nodiscard]] ChunkHeader member(std::uint32_t at) const;
  // Members come in the order of their numbers. False: the chunk is none.
  [[nodiscard]] bool take(const ChunkHeader& next);
};
inline constexpr std::size_t run_header_bytes = chunk_header_bytes + 4;
[[nodiscard]] inline std::size_t run_bytes(const Run& run) {
  return run_header_bytes + padded_exponents(std::size_t{run.size()} * run.first.exponents);
}

struct RunPacket {
  Common common;
  Run run;
  std::span<const std::byte> exponents;  // of one member after the other

  // Calls `each` with each member's packet, as if it had come alone.
  template <class Each>
  void for_each(const Each& each) const {
    ChunkPacket chunk;
    chunk.common = common;
    chunk.common.type = common.type == Type::acknowledgements ? Type::acknowledgement : Type::contribution;
    std::size_t number = 0;
    for (std::uint32_t at = 0; at < Run::most; ++at) {
      if ((run.members >> at & 1) == 0) continue;
      chunk.header = run.member(at);
      chunk.exponents = exponents.subspan(number++ * run.first.exponents, run.first.exponents);
      each(chunk);
    }
  }
};

// A part of an exact sum of floats of 16 bits or fewer (kernels/exact_sum.h), in one packet of several. The header is that
// of the contributions, and so says of how many elements they are.
struct SumPart {
  ChunkPacket chunk;  // whose payload is the part
  std::uint16_t place = 0;
  std::uint8_t part = 0, parts = 1;
};
inline constexpr std::size_t sum_part_header_bytes = chunk_header_bytes + 4;
[[nodiscard]] std::size_t sum_part_bytes(const ChunkHeader& header, std::uint16_t place);

// Both ways: `waiting` and `missing`.
struct WaitingPacket {
  Common common;
  std::uint64_t operation;
  std::uint32_t chunk;
  std::uint16_t slot;
  bool exponent_round;
  Ranks missing;
  // To a switch whose sum is missing: a later sum of its that has come, as 2 * slot + version.
  std::uint32_t overtaken_by = not_overtaken;
  static constexpr std::uint32_t not_overtaken = 0xffffffff;
};
inline constexpr std::size_t waiting_header_bytes = common_bytes + 20;
[[nodiscard]] std::size_t waiting_bytes(const Ranks& missing);  // as many ranks as the highest one needs

struct MismatchPacket {
  Common common;
  std::uint64_t operation;
  std::uint32_t chunk;
  std::uint32_t first_signature, second_signature;
  std::uint16_t first_rank, second_rank;
};
inline constexpr std::size_t mismatch_bytes = common_bytes + 24;

struct ProbePacket {
  Common common;
  std::uint32_t sequence = 0;
  std::uint64_t cookie = 0;  // reply: of the destination endpoint (base/endpoint_cookies.h); probe: 0
};
inline constexpr std::size_t probe_reply_bytes = common_bytes + 12;  // a probe is at least as long, and may be padded

// Version, type, length and checksum are checked here once; the typed parsers check their types' fields and lengths.
[[nodiscard]] ParseError parse_common(std::span<const std::byte> bytes, Common& out);
[[nodiscard]] ParseError parse_chunk(std::span<const std::byte> bytes, const Common& common, ChunkPacket& out);
[[nodiscard]] ParseError parse_run(std::span<const std::byte> bytes, const Common& common, RunPacket& out);
[[nodiscard]] ParseError parse_sum_part(std::span<const std::byte> bytes, const Common& common, SumPart& out);
// Whether parse_common() and parse_chunk() would take the packet and read this from it, in fewer steps. The header is one
// that they can read, and there is no seal.
[[nodiscard]] bool has_header(std::span<const std::byte> packet, const Common& common, const ChunkHeader& header);
[[nodiscard]] ParseError parse_waiting(std::span<const std::byte> bytes, const Common& common, WaitingPacket& out);
[[nodiscard]] ParseError parse_mismatch(std::span<const std::byte> bytes, const Common& common, MismatchPacket& out);
[[nodiscard]] ParseError parse_probe(std::span<const std::byte> bytes, const Common& common, ProbePacket& out);

// Writers. write_chunk_header fills the first chunk_header_bytes and zeroes the exponents' padding; seal() comes last and
// writes the checksum of the whole packet, if it has one.
void write_chunk_header(std::span<std::byte> packet, const Common& common, const ChunkHeader& header);
void write_run_header(std::span<std::byte> packet, const Common& common, const Run& run);  // in the same way
void write_sum_part_header(std::span<std::byte> packet, const SumPart& part);  // in the same way, its exponents too
void seal(std::span<std::byte> packet);
// In place of seal(): for a packet that a key seals next, or, `none`, that has a checksum in place of the seal that it had.
void reseal(std::span<std::byte> packet, PacketSecurity security);
void write_waiting(std::span<std::byte> packet, const WaitingPacket& waiting);  // waiting_bytes
void write_mismatch(std::span<std::byte> packet, const MismatchPacket& mismatch);
void write_unknown_job(std::span<std::byte> packet, const Common& asked);  // common_bytes; echoes both epochs
void write_probe(std::span<std::byte> packet, const ProbePacket& probe);   // any length >= probe_reply_bytes

}  // namespace netsum::wire::switchml
