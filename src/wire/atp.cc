#include "wire/atp.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace netsum::wire::atp {
namespace {

// Offsets of docs/protocol-atp.md.
constexpr std::size_t at_flags = 2, at_checksum = 4, at_sequence = 16, at_rank_epoch = 24, at_signature = 28, at_index = 32,
                      at_elements = 36, at_level = 38, at_exponent = 39;
constexpr std::size_t at_fan_in = 40, at_bitmap = 44, at_broad_bitmap = 48;
constexpr std::size_t at_next_index = 40;
constexpr std::size_t at_missing = 40;
constexpr std::size_t at_first_signature = 40, at_second_signature = 44, at_first_rank = 48, at_second_rank = 50;

constexpr std::uint16_t flag_resend = 1, flag_ecn = 2, flag_collision = 4, flag_overflow = 8, flag_wide = 16,
                        flag_direct = 32, flag_floats = 64, flag_integers = 128, flag_average = 256, flag_unchecked = 512,
                        flag_broad = 1024;

static_assert(at_exponent + 1 == common_bytes);
static_assert(at_bitmap + 4 * max_levels == gradient_header_bytes);
static_assert(at_broad_bitmap == broad_header_bytes(0));
static_assert(at_next_index + 4 == parameter_header_bytes);
static_assert(at_second_rank + 2 == mismatch_bytes);

std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<std::uint8_t>(bytes[at]);
}

// One pass: the word before the checksum serves as the CRC of the preceding bytes.
std::uint32_t checksum_of(std::span<const std::byte> packet) {
  return crc32c(packet.subspan(at_checksum + 4), load_le<std::uint32_t>(packet.data()));
}

std::uint16_t flags_of(const Common& c) {
  return static_cast<std::uint16_t>((c.resend ? flag_resend : 0) | (c.ecn ? flag_ecn : 0) |
                                    (c.collision ? flag_collision : 0) | (c.overflow ? flag_overflow : 0) |
                                    (c.wide ? flag_wide : 0) | (c.direct ? flag_direct : 0) | (c.floats ? flag_floats : 0) |
                                    (c.integers ? flag_integers : 0) | (c.average ? flag_average : 0) |
                                    (c.unchecked ? flag_unchecked : 0));
}

std::uint16_t flags_allowed(Type type) {
  switch (type) {
    case Type::gradient:
      return flag_resend | flag_ecn | flag_collision | flag_overflow | flag_wide | flag_direct | flag_floats |
             flag_integers | flag_average | flag_unchecked | flag_broad;
    case Type::parameter:
      return flag_ecn | flag_floats | flag_unchecked;
    case Type::ask:
      return flag_floats;
    default:
      return 0;
  }
}

void write_common(std::span<std::byte> packet, const Common& c) {
  std::byte* p = packet.data();
  p[at_version] = std::byte{version};
  p[at_type] = static_cast<std::byte>(c.type);
  store_le(p + at_flags, flags_of(c));
  store_le(p + at_job_epoch, c.job_epoch);
  store_le(p + at_sequence, c.sequence);
  store_le(p + at_rank_epoch, c.rank_epoch);
  store_le(p + at_signature, c.signature);
  store_le(p + at_index, c.index);
  store_le(p + at_elements, c.elements);
  p[at_level] = std::byte{0};
  p[at_exponent] = std::byte{c.exponent};
}

// Whether all bits are of children, where there are so many.
bool is_within(std::uint32_t word, std::uint32_t children) {
  return (std::uint64_t{word} >> std::min(children, word_bits)) == 0;
}

}  // namespace

void Directions::set(std::size_t of_level, const Children& children) {
  for (std::size_t row = 0; row < rows_; ++row) {
    words_[row][of_level] = static_cast<std::uint32_t>(children.words()[row / 2] >> row % 2 * word_bits);
  }
}

Children Directions::children(std::size_t of_level) const {
  Children::Words words{};
  for (std::size_t row = 0; row < rows_; ++row) {
    words[row / 2] |= std::uint64_t{words_[row][of_level]} << row % 2 * word_bits;
  }
  return Children::from_words(words);
}

std::uint32_t Directions::count(std::size_t of_level) const {
  int sum = 0;
  for (std::size_t row = 0; row < rows_; ++row) sum += std::popcount(words_[row][of_level]);
  return static_cast<std::uint32_t>(sum);
}

std::optional<std::uint32_t> Directions::only_of_several_words(std::size_t of_level) const {
  std::optional<std::uint32_t> child;
  for (std::uint32_t row = 0; row < rows_; ++row) {
    const std::uint32_t word = words_[row][of_level];
    if (word == 0) continue;
    if (child || !std::has_single_bit(word)) return std::nullopt;
    child = row * word_bits + static_cast<std::uint32_t>(std::countr_zero(word));
  }
  return child;
}

// Reads past the fan-ins only if the packet is as long as they say.
ParseError Directions::parse_broad(std::span<const std::byte> packet, std::size_t rest) {
  FanIn fan_in;
  for (std::size_t i = 0; i < max_levels; ++i) {
    fan_in[i] = load_le<std::uint16_t>(packet.data() + at_fan_in + 2 * i);
    if (fan_in[i] > max_fan_in) return ParseError::field;
  }
  *this = Directions(byte_at(packet, at_level), fan_in);
  if (!broad()) return ParseError::field;  // there is one way to write each
  if (packet.size() != header_bytes(*this) + rest) return ParseError::length;
  const std::byte* at = packet.data() + at_broad_bitmap;
  for (std::size_t i = 0; i < max_levels; ++i) {
    std::uint32_t children = fan_in[i];
    for (std::uint32_t row = 0; row < words_of(fan_in[i]); ++row, at += 4) {
      words_[row][i] = load_le<std::uint32_t>(at);
      if (!is_within(words_[row][i], children)) return ParseError::field;
      children -= std::min(children, word_bits);
    }
  }
  return ParseError::none;
}

// Each field is written as it is read next: a processor waits for what it wrote in several parts.
ParseError Directions::parse(std::span<const std::byte> packet, std::size_t rest) {
  if ((load_le<std::uint16_t>(packet.data() + at_flags) & flag_broad) != 0) {
    if (const auto error = parse_broad(packet, rest); error != ParseError::none) return error;
  } else {
    if (packet.size() != gradient_header_bytes + rest) return ParseError::length;
    level = byte_at(packet, at_level);
    rows_ = 1;
    for (std::size_t i = 0; i < max_levels; ++i) {
      fan_in_[i] = byte_at(packet, at_fan_in + i);
      words_[0][i] = load_le<std::uint32_t>(packet.data() + at_bitmap + 4 * i);
      if (fan_in_[i] > word_bits || !is_within(words_[0][i], fan_in_[i])) return ParseError::field;
    }
  }
  return level < max_levels ? ParseError::none : ParseError::field;
}

bool Directions::operator==(const Directions& other) const {
  return level == other.level && fan_in_ == other.fan_in_ &&
         std::equal(words_.begin(), words_.begin() + rows_, other.words_.begin());
}

ParseError parse_common(std::span<const std::byte> bytes, Common& out) {
  if (bytes.size() < common_bytes) return ParseError::truncated;
  if (byte_at(bytes, at_version) != version) return ParseError::version;
  const std::uint8_t type = byte_at(bytes, at_type);
  if (type < static_cast<std::uint8_t>(Type::gradient) || type > static_cast<std::uint8_t>(Type::unknown_job)) {
    return ParseError::type;
  }
  const std::byte* p = bytes.data();
  const auto flags = load_le<std::uint16_t>(p + at_flags);
  // A bit flip cannot turn a checked packet into a valid unchecked one, which has 0 in the checksum's place.
  const std::uint32_t expected = (flags & flag_unchecked) != 0 ? 0 : checksum_of(bytes);
  if (load_le<std::uint32_t>(p + at_checksum) != expected) return ParseError::checksum;
  out.type = static_cast<Type>(type);
  if ((flags & ~flags_allowed(out.type)) != 0) return ParseError::field;
  out.resend = (flags & flag_resend) != 0;
  out.ecn = (flags & flag_ecn) != 0;
  out.collision = (flags & flag_collision) != 0;
  out.overflow = (flags & flag_overflow) != 0;
  out.wide = (flags & flag_wide) != 0;
  out.direct = (flags & flag_direct) != 0;
  out.floats = (flags & flag_floats) != 0;
  out.integers = (flags & flag_integers) != 0;
  out.average = (flags & flag_average) != 0;
  out.unchecked = (flags & flag_unchecked) != 0;
  out.job_epoch = load_le<std::uint64_t>(p + at_job_epoch);
  out.sequence = load_le<std::uint64_t>(p + at_sequence);
  out.rank_epoch = load_le<std::uint32_t>(p + at_rank_epoch);
  out.signature = load_le<std::uint32_t>(p + at_signature);
  out.index = load_le<std::uint32_t>(p + at_index);
  out.elements = load_le<std::uint16_t>(p + at_elements);
  out.exponent = byte_at(bytes, at_exponent);

  const bool values = out.type == Type::gradient || out.type == Type::parameter;
  if (values ? out.elements > max_packet_elements : out.elements != 0) return ParseError::field;
  if (out.exponent > (values ? max_exponent : 0)) return ParseError::field;
  if (out.type != Type::gradient && byte_at(bytes, at_level) != 0) return ParseError::field;
  if (out.type == Type::unknown_job) {
    if (bytes.size() != common_bytes) return ParseError::length;
    if (out.sequence != 0 || out.signature != 0 || out.index != 0) return ParseError::field;
  }
  return ParseError::none;
}

ParseError parse_gradient(std::span<const std::byte> bytes, const Common& common, GradientPacket& out) {
  if (bytes.size() < gradient_header_bytes) return ParseError::truncated;
  // Floats are one rank's unscaled values, and go only to the parameter server.
  if (common.floats && (common.wide || common.overflow || common.collision || !common.direct)) return ParseError::field;
  if (common.average && !common.floats) return ParseError::field;
  if (common.integers && (common.floats || common.wide || common.overflow || common.exponent != 0)) return ParseError::field;
  if (common.wide && common.elements == 0) return ParseError::field;
  if (common.collision && !common.resend) return ParseError::field;  // §3.5: so that the next switch passes it on
  const std::size_t rest = std::size_t{common.elements} * 4 + (common.wide ? high_bytes(common.elements) : 0);
  if (const auto error = out.directions.parse(bytes, rest); error != ParseError::none) return error;
  const std::size_t header = bytes.size() - rest;
  out.common = common;
  out.payload = bytes.subspan(header, std::size_t{common.elements} * 4);
  out.high = {};
  if (common.wide) {
    out.high = bytes.subspan(header + out.payload.size());
    if (common.elements % 2 != 0 && load_le<std::uint16_t>(out.high.data() + out.high.size() - 2) != 0)
      return ParseError::field;
  }
  return ParseError::none;
}

ParseError parse_parameter(std::span<const std::byte> bytes, const Common& common, ParameterPacket& out) {
  if (bytes.size() < parameter_header_bytes) return ParseError::truncated;
  if (bytes.size() != parameter_bytes(common)) return ParseError::length;
  out = {common, load_le<std::uint32_t>(bytes.data() + at_next_index), bytes.subspan(parameter_header_bytes)};
  if (common.type != Type::parameter && out.next_index != 0) return ParseError::field;
  return ParseError::none;
}

ParseError parse_waiting(std::span<const std::byte> bytes, const Common& common, WaitingPacket& out) {
  std::array<std::uint64_t, max_workers / 64> words;
  const std::size_t count = (bytes.size() - at_missing) / 8;
  if (count > words.size()) return ParseError::length;
  for (std::size_t i = 0; i < count; ++i) words[i] = load_le<std::uint64_t>(bytes.data() + at_missing + 8 * i);
  out = {common, Ranks::from_words(std::span(words).first(count))};
  return bytes.size() == waiting_bytes(out.missing) ? ParseError::none : ParseError::length;
}

ParseError parse_mismatch(std::span<const std::byte> bytes, const Common& common, MismatchPacket& out) {
  if (bytes.size() != mismatch_bytes) return ParseError::length;
  const std::byte* p = bytes.data();
  out = {common, load_le<std::uint32_t>(p + at_first_signature), load_le<std::uint32_t>(p + at_second_signature),
         load_le<std::uint16_t>(p + at_first_rank), load_le<std::uint16_t>(p + at_second_rank)};
  if (out.first_rank >= max_workers || out.second_rank >= max_workers) return ParseError::field;
  return ParseError::none;
}

void write_gradient_header(std::span<std::byte> packet, const Common& common, const Directions& directions) {
  write_common(packet, common);
  std::byte* p = packet.data();
  p[at_level] = std::byte{directions.level};
  const Directions::FanIn& fan_in = directions.fan_in();
  if (!directions.broad()) {
    for (std::size_t i = 0; i < max_levels; ++i) {
      p[at_fan_in + i] = static_cast<std::byte>(fan_in[i]);
      store_le(p + at_bitmap + 4 * i, directions.word(i));
    }
    return;
  }
  store_le(p + at_flags, static_cast<std::uint16_t>(flags_of(common) | flag_broad));
  std::byte* at = p + at_broad_bitmap;
  for (std::size_t i = 0; i < max_levels; ++i) {
    store_le(p + at_fan_in + 2 * i, fan_in[i]);
    for (std::uint32_t row = 0; row < words_of(fan_in[i]); ++row, at += 4) store_le(at, directions.word(i, row));
  }
}

void write_parameter_header(std::span<std::byte> packet, const Common& common, std::uint32_t next_index) {
  write_common(packet, common);
  store_le(packet.data() + at_next_index, next_index);
}

void seal(std::span<std::byte> packet) {
  const bool checked = (load_le<std::uint16_t>(packet.data() + at_flags) & flag_unchecked) == 0;
  store_le(packet.data() + at_checksum, checked ? checksum_of(packet) : 0);
}

void write_waiting(std::span<std::byte> packet, const WaitingPacket& waiting) {
  write_common(packet, waiting.common);
  const std::span<const std::uint64_t> words = waiting.missing.words();
  for (std::size_t i = 0; i < (packet.size() - at_missing) / 8; ++i)
    store_le(packet.data() + at_missing + 8 * i, i < words.size() ? words[i] : 0);
  seal(packet);
}

void write_mismatch(std::span<std::byte> packet, const MismatchPacket& mismatch) {
  write_common(packet, mismatch.common);
  std::byte* p = packet.data();
  store_le(p + at_first_signature, mismatch.first_signature);
  store_le(p + at_second_signature, mismatch.second_signature);
  store_le(p + at_first_rank, mismatch.first_rank);
  store_le(p + at_second_rank, mismatch.second_rank);
  seal(packet);
}

void write_unknown_job(std::span<std::byte> packet, const Common& asked) {
  Common common;
  common.type = Type::unknown_job;
  common.job_epoch = asked.job_epoch;
  common.rank_epoch = asked.rank_epoch;
  write_common(packet, common);
  seal(packet);
}

}  // namespace netsum::wire::atp
