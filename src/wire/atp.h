// The ATP format over UDP: docs/protocol-atp.md is its specification, byte by byte.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bitmap.h"
#include "base/short_rank_set.h"
#include "wire/parse_error.h"

namespace netsum::wire::atp {

// Not a version of SwitchML's format: one socket may take both.
inline constexpr std::uint8_t version = 0xa3;
inline constexpr std::size_t common_bytes = 40;
// Offsets of a packet's type and job, for a filter that runs before any parser.
inline constexpr std::size_t at_version = 0, at_type = 1, at_job_epoch = 8;
inline constexpr std::uint32_t max_levels = 4;    // of aggregation, the parameter server included
inline constexpr std::uint32_t max_fan_in = 256;  // of one level
inline constexpr std::uint32_t word_bits = 32;    // of a bitmap's words
inline constexpr std::uint32_t max_workers = 4096;
inline constexpr std::uint32_t max_packet_elements = 10880;  // as wide sums, 65340 bytes: below UDP's limit over IPv6
inline constexpr std::uint8_t max_exponent = 254;            // biased, of a finite float32

using Ranks = ShortRankSet<max_workers>;
using Children = BasicRankSet<max_fan_in>;  // of one level, by position

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

// A level's bitmap has a word, or as many as its children need.
[[nodiscard]] constexpr std::uint32_t words_of(std::uint32_t fan_in) {
  return std::max(1U, (fan_in + word_bits - 1) / word_bits);
}

// The packet's directions (§3.3), for each level of aggregation: worker's switch, ..., parameter server. They are copied
// with every packet: of the bitmaps only as many words as the widest one has.
class Directions {
 public:
  using FanIn = std::array<std::uint16_t, max_levels>;  // children that a level waits for; 0: there is no such level
  // Below `level`: the sum's contributions; from `level` on: one bit, the sending child.
  using Words = std::array<std::uint32_t, max_levels>;

  std::uint8_t level = 0;  // next level on the way (edgeSwitchIdentifier)

  Directions() : rows_(1), fan_in_{} { words_[0] = {}; }
  // `words`: the first of each bitmap; the others are empty.
  Directions(std::uint8_t next_level, const FanIn& fan_in, const Words& words = {})
      : level(next_level),
        rows_(static_cast<std::uint8_t>(words_of(*std::max_element(fan_in.begin(), fan_in.end())))),
        fan_in_(fan_in) {
    words_[0] = words;
    std::fill(words_.begin() + 1, words_.begin() + rows_, Words{});
  }
  Directions(const Directions& other) { copy(other); }
  Directions& operator=(const Directions& other) {
    copy(other);
    return *this;
  }

  [[nodiscard]] const FanIn& fan_in() const { return fan_in_; }
  // A level has more children than a word has bits.
  [[nodiscard]] bool broad() const { return rows_ != 1; }
  [[nodiscard]] std::uint32_t word(std::size_t of_level, std::size_t row = 0) const { return words_[row][of_level]; }
  void insert(std::size_t of_level, std::uint32_t child) {
    words_[child / word_bits][of_level] |= std::uint32_t{1} << child % word_bits;
  }
  void set(std::size_t of_level, const Children& children);
  [[nodiscard]] Children children(std::size_t of_level) const;
  [[nodiscard]] std::uint32_t count(std::size_t of_level) const;
  // None: no child's bit, or several.
  [[nodiscard]] std::optional<std::uint32_t> only(std::size_t of_level) const {
    if (broad()) return only_of_several_words(of_level);
    const std::uint32_t word = words_[0][of_level];
    return std::has_single_bit(word) ? std::optional(static_cast<std::uint32_t>(std::countr_zero(word))) : std::nullopt;
  }
  bool operator==(const Directions& other) const;

  // From a gradient packet with so many bytes behind its header; if it is wrong, they have no value.
  [[nodiscard]] ParseError parse(std::span<const std::byte> packet, std::size_t rest);

 private:
  [[nodiscard]] ParseError parse_broad(std::span<const std::byte> packet, std::size_t rest);
  [[nodiscard]] std::optional<std::uint32_t> only_of_several_words(std::size_t of_level) const;
  void copy(const Directions& other) {
    level = other.level;
    rows_ = other.rows_;
    fan_in_ = other.fan_in_;
    words_[0] = other.words_[0];
    if (broad()) std::copy_n(other.words_.begin() + 1, rows_ - 1, words_.begin() + 1);
  }

  std::uint8_t rows_;  // words of the widest bitmap
  FanIn fan_in_;
  std::array<Words, words_of(max_fan_in)> words_;  // what is beyond `rows_` has no value
};

struct GradientPacket {
  Common common;
  Directions directions;
  std::span<const std::byte> payload, high;  // high: int16 words, empty unless wide
};
// The header's length where no direction is broad.
inline constexpr std::size_t gradient_header_bytes = common_bytes + max_levels + 4 * max_levels;
// Broad: two bytes for each fan-in, and as many words as so many levels' bitmaps have.
[[nodiscard]] constexpr std::size_t broad_header_bytes(std::uint32_t words) {
  return common_bytes + 2 * max_levels + 4 * std::size_t{words};
}
[[nodiscard]] inline std::size_t header_bytes(const Directions& directions) {
  if (!directions.broad()) return gradient_header_bytes;
  std::uint32_t words = 0;
  for (const std::uint32_t fan_in : directions.fan_in()) words += words_of(fan_in);
  return broad_header_bytes(words);
}
// In a job of so many ranks, wherever they are. Each level of a path has one child on it, and all others are above a rank
// each: so the bitmaps have at most a word for each level, and one for each 32 of the other ranks.
[[nodiscard]] constexpr std::size_t longest_header_bytes(std::uint32_t ranks) {
  if (ranks <= word_bits) return gradient_header_bytes;
  return broad_header_bytes(max_levels + std::min((ranks - 1) / word_bits, max_levels * (words_of(max_fan_in) - 1)));
}

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
// A bit for each of 1,024 ranks; for each of max_workers if one behind these is missing.
inline constexpr std::uint32_t few_workers = 1024;
[[nodiscard]] inline std::size_t waiting_bytes(const Ranks& missing) {
  return common_bytes + (missing.words().size() > few_workers / 64 ? max_workers : few_workers) / 8;
}

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
[[nodiscard]] inline std::size_t gradient_bytes(const Common& common, const Directions& directions) {
  return header_bytes(directions) + std::size_t{common.elements} * 4 + (common.wide ? high_bytes(common.elements) : 0);
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
