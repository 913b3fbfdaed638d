#include "wire/switchml.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/wire_types.h"

namespace netsum::wire::switchml {
namespace {

constexpr std::size_t at_waiting_slot = 32, at_waiting_round = 34, at_waiting_reserved = 35, at_overtaken_by = 36,
                      at_waiting_missing = 40;
constexpr std::size_t at_first_signature = 32, at_second_signature = 36, at_first_rank = 40, at_second_rank = 42;
constexpr std::size_t at_sequence = 20;
constexpr std::size_t at_cookie = at_sequence + 4;

constexpr std::size_t at_versions = chunk_header_bytes, at_run_reserved = at_versions + 2;

constexpr std::size_t at_place = chunk_header_bytes, at_part = at_place + 2, at_parts = at_part + 1;

static_assert(last_type <= type_bits);

constexpr std::uint8_t known_flags = flag_version | flag_masks | flag_acknowledge | flag_later | flag_due;

// A byte describes the values: the type in the low 4 bits, as an index here, and the operation above it.
constexpr DType dtypes[] = {DType::int32, DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int64,
                            DType::int16, DType::int8,    DType::uint8,    block8,         block4};
constexpr std::uint8_t dtype_bits = 0x0f;
std::uint8_t index_of(DType dtype) {
  static constexpr auto indices = [] {
    std::array<std::uint8_t, 256> made{};
    for (std::size_t i = 0; i < std::size(dtypes); ++i)
      made[static_cast<std::uint8_t>(dtypes[i])] = static_cast<std::uint8_t>(i);
    return made;
  }();
  return indices[static_cast<std::uint8_t>(dtype)];
}
constexpr int op_shift = 4;
constexpr auto most_op = static_cast<std::uint8_t>(ReduceOp::bit_xor);

// What a switch can do with values of a type. Floats have no order in which it could compare them: ranks send integers.
bool has_operation(DType dtype, ReduceOp op) {
  if (has_blocks(dtype)) return op == ReduceOp::sum;
  if (is_float(dtype)) return op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::product;
  return op != ReduceOp::avg;
}

static_assert(at_flags + 1 == chunk_header_bytes);
static_assert(at_waiting_missing == waiting_header_bytes);
static_assert(at_second_rank + 2 == mismatch_bytes);
static_assert(at_rank_epoch + 4 == common_bytes);

std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<std::uint8_t>(bytes[at]);
}

// One pass: the word before the checksum serves as the CRC of the preceding bytes.
std::uint32_t checksum_of(std::span<const std::byte> packet) {
  return crc32c(packet.subspan(at_checksum + 4), load_le<std::uint32_t>(packet.data()));
}

std::uint8_t integrity_of(const Common& common) {
  if (common.security != PacketSecurity::none) return common.security == PacketSecurity::tag ? tagged : encrypted;
  return common.checked ? checksummed : unprotected;
}

std::uint8_t type_byte(const Common& common) {
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(common.type) | integrity_of(common) << integrity_shift);
}

bool is_about_a_chunk(Type type) {
  return type <= Type::exponent_result || type >= Type::acknowledgement;
}
// By a key that the sender and the receiver have: before joining, and where a job is unknown, they have none.
bool may_be_sealed(Type type) {
  return type != Type::unknown_job && type != Type::probe && type != Type::probe_reply;
}
bool goes_upstream(Type type) {
  return type == Type::contribution || type == Type::exponent_contribution || type == Type::missing ||
         type == Type::empty_contributions || type == Type::sum_part;
}

// The header as words, each with its offset, and the checksum as 0. Nobody waits for bytes of one that were stored singly.
template <class Body>
void for_header_words(const Common& common, const ChunkHeader& header, Body body) {
  const auto at = [](std::uint64_t value, std::size_t offset) { return value << 8 * (offset % 8); };
  const auto flags = static_cast<std::uint8_t>((header.version != 0 ? flag_version : 0) | (header.masks ? flag_masks : 0) |
                                               (header.acknowledge_only ? flag_acknowledge : 0) |
                                               (header.later ? flag_later : 0) | (header.due ? flag_due : 0));
  const auto values = static_cast<std::uint8_t>(index_of(header.dtype) | static_cast<unsigned>(header.op) << op_shift);
  body(0, at(version, at_version) | at(type_byte(common), at_type) | at(common.sender, at_sender));
  body(at_job_epoch, common.job_epoch);
  body(at_rank_epoch, at(common.rank_epoch, at_rank_epoch) | at(header.chunk, at_chunk));
  body(at_operation, header.operation);
  body(at_signature, at(header.signature, at_signature) | at(header.ahead_chunk, at_ahead_chunk));
  body(at_ahead_operation, at(header.ahead_operation, at_ahead_operation) | at(values, at_values) |
                               at(header.slot, at_slot) | at(header.elements, at_elements) |
                               at(header.exponents, at_exponents) | at(flags, at_flags));
}

void write_common(std::span<std::byte> packet, const Common& common) {
  std::byte* p = packet.data();
  p[at_version] = std::byte{version};
  p[at_type] = std::byte{type_byte(common)};
  store_le(p + at_sender, common.sender);
  store_le(p + at_job_epoch, common.job_epoch);
  store_le(p + at_rank_epoch, common.rank_epoch);
}

// The fields of a chunk's header, each by itself.
ParseError parse_header(std::span<const std::byte> bytes, ChunkHeader& header) {
  const std::byte* p = bytes.data();
  const std::uint8_t flags = byte_at(bytes, at_flags);
  header.operation = load_le<std::uint64_t>(p + at_operation);
  header.chunk = load_le<std::uint32_t>(p + at_chunk);
  header.signature = load_le<std::uint32_t>(p + at_signature);
  header.ahead_chunk = load_le<std::uint32_t>(p + at_ahead_chunk);
  header.ahead_operation = byte_at(bytes, at_ahead_operation);
  header.slot = load_le<std::uint16_t>(p + at_slot);
  header.elements = load_le<std::uint16_t>(p + at_elements);
  header.exponents = byte_at(bytes, at_exponents);
  header.version = flags & flag_version;
  header.masks = (flags & flag_masks) != 0;
  header.acknowledge_only = (flags & flag_acknowledge) != 0;
  header.later = (flags & flag_later) != 0;
  header.due = (flags & flag_due) != 0;

  const auto dtype = static_cast<std::uint8_t>(byte_at(bytes, at_values) & dtype_bits);
  const auto op = static_cast<std::uint8_t>(byte_at(bytes, at_values) >> op_shift);
  if ((flags & ~known_flags) != 0 || header.exponents > max_blocks) return ParseError::field;
  if (dtype >= std::size(dtypes) || op > most_op) return ParseError::field;
  header.dtype = dtypes[dtype];
  header.op = static_cast<ReduceOp>(op);
  if (!has_operation(header.dtype, header.op)) return ParseError::field;
  if (header.later && !header.acknowledge_only) return ParseError::field;
  if (header.due && header.acknowledge_only) return ParseError::field;
  if ((header.ahead_operation == no_ahead) != (header.exponents == 0)) return ParseError::field;
  return ParseError::none;
}

}  // namespace

ParseError parse_common(std::span<const std::byte> bytes, Common& out) {
  if (bytes.size() < common_bytes) return ParseError::truncated;
  if (byte_at(bytes, at_version) != version) return ParseError::version;
  const auto type = static_cast<std::uint8_t>(byte_at(bytes, at_type) & type_bits);
  if (type < static_cast<std::uint8_t>(Type::contribution) || type > last_type) return ParseError::type;
  // A bit flip cannot turn a checked packet into a valid one of another kind, which has 0 in the checksum's place.
  const auto integrity = static_cast<std::uint8_t>(byte_at(bytes, at_type) >> integrity_shift);
  const std::uint32_t expected = integrity == checksummed ? checksum_of(bytes) : 0;
  if (load_le<std::uint32_t>(bytes.data() + at_checksum) != expected) return ParseError::checksum;
  if (integrity > encrypted) return ParseError::field;
  out.type = static_cast<Type>(type);
  out.checked = integrity != unprotected;
  out.security = integrity == tagged      ? PacketSecurity::tag
                 : integrity == encrypted ? PacketSecurity::encrypt
                                          : PacketSecurity::none;
  if (!out.checked && !is_about_a_chunk(out.type)) return ParseError::field;
  if (out.security != PacketSecurity::none && !may_be_sealed(out.type)) return ParseError::field;
  out.sender = load_le<std::uint16_t>(bytes.data() + at_sender);
  if (out.sender >= (goes_upstream(out.type) ? max_workers : 1)) return ParseError::field;
  out.job_epoch = load_le<std::uint64_t>(bytes.data() + at_job_epoch);
  out.rank_epoch = load_le<std::uint32_t>(bytes.data() + at_rank_epoch);
  return ParseError::none;
}

ParseError parse_chunk(std::span<const std::byte> bytes, const Common& common, ChunkPacket& out) {
  if (bytes.size() < chunk_header_bytes) return ParseError::truncated;
  out.common = common;
  ChunkHeader& header = out.header;
  if (const ParseError error = parse_header(bytes, header); error != ParseError::none) return error;
  if (header.elements * bytes_of(header.dtype) > most_payload_bytes(max_packet_elements, header.dtype, header.op))
    return ParseError::field;
  const bool acknowledgement = common.type == Type::acknowledgement;
  // Barriers and ranks without values have no floats. Only block fixed point has masks.
  if (added_in_order(header.dtype) && header.elements == 0 && !acknowledgement) return ParseError::field;
  if (header.masks && (header.dtype != DType::int32 || header.op != ReduceOp::sum)) return ParseError::field;
  if ((header.acknowledge_only || header.due) && common.type != Type::contribution) return ParseError::field;
  if (acknowledgement && header.elements != 0) return ParseError::field;
  if (header.masks && header.elements == 0) return ParseError::field;
  const bool exponent_round = common.type == Type::exponent_contribution || common.type == Type::exponent_result;
  if (exponent_round && header.elements != 0) return ParseError::field;
  if (bytes.size() != chunk_packet_bytes(header)) return ParseError::length;

  const std::size_t padded = padded_exponents(header.exponents);
  out.exponents = bytes.subspan(chunk_header_bytes, header.exponents);
  out.payload = bytes.subspan(chunk_header_bytes + padded, header.elements * bytes_of(header.dtype));
  out.masks = bytes.subspan(chunk_header_bytes + padded + out.payload.size());
  return valid_exponents(bytes.data() + chunk_header_bytes, header.exponents) ? ParseError::none : ParseError::field;
}

ParseError parse_run(std::span<const std::byte> bytes, const Common& common, RunPacket& out) {
  if (bytes.size() < run_header_bytes) return ParseError::truncated;
  out.common = common;
  ChunkHeader& first = out.run.first;
  if (const ParseError error = parse_header(bytes, first); error != ParseError::none) return error;
  out.run.members = std::exchange(first.elements, std::uint16_t{0});
  out.run.versions = load_le<std::uint16_t>(bytes.data() + at_versions);
  const bool upstream = common.type == Type::empty_contributions;
  if (!upstream && common.type != Type::acknowledgements) return ParseError::type;
  if ((out.run.members & 1) == 0 || (out.run.versions & ~out.run.members) != 0) return ParseError::field;
  if (first.version != 0 || first.masks || load_le<std::uint16_t>(bytes.data() + at_run_reserved) != 0)
    return ParseError::field;
  if (out.run.last_slot() > UINT16_MAX) return ParseError::field;
  if (upstream ? added_in_order(first.dtype) : first.acknowledge_only || first.due) return ParseError::field;
  if (bytes.size() != run_bytes(out.run)) return ParseError::length;
  out.exponents = bytes.subspan(run_header_bytes, std::size_t{out.run.size()} * first.exponents);
  return valid_exponents(out.exponents.data(), out.exponents.size()) ? ParseError::none : ParseError::field;
}

std::size_t sum_part_bytes(const ChunkHeader& header, std::uint16_t place) {
  return sum_part_header_bytes + padded_exponents(header.exponents) + SumParts::bytes(header.dtype, header.elements, place);
}

ParseError parse_sum_part(std::span<const std::byte> bytes, const Common& common, SumPart& out) {
  if (bytes.size() < sum_part_header_bytes) return ParseError::truncated;
  out.chunk.common = common;
  ChunkHeader& header = out.chunk.header;
  if (const ParseError error = parse_header(bytes, header); error != ParseError::none) return error;
  out.place = load_le<std::uint16_t>(bytes.data() + at_place);
  out.part = byte_at(bytes, at_part);
  out.parts = byte_at(bytes, at_parts);
  if (common.type != Type::sum_part) return ParseError::type;
  if (!SumParts::of(header.dtype, header.op) || header.elements == 0 || header.masks) return ParseError::field;
  if (elements_of_sum(header.dtype, header.elements) * bytes_of(header.dtype) > std::size_t{max_packet_elements} * 4)
    return ParseError::field;
  if (out.place > SumParts::most_place && out.place != SumParts::masks) return ParseError::field;
  if (out.part >= out.parts || out.parts > SumParts::most) return ParseError::field;
  if (bytes.size() != sum_part_bytes(header, out.place)) return ParseError::length;
  out.chunk.exponents = bytes.subspan(sum_part_header_bytes, header.exponents);
  out.chunk.payload = bytes.subspan(sum_part_header_bytes + padded_exponents(header.exponents));
  out.chunk.masks = {};
  return valid_exponents(bytes.data() + sum_part_header_bytes, header.exponents) ? ParseError::none : ParseError::field;
}

void write_sum_part_header(std::span<std::byte> packet, const SumPart& part) {
  const std::size_t exponents = part.chunk.header.exponents, padded = padded_exponents(exponents);
  write_chunk_header(packet, part.chunk.common, part.chunk.header);
  store_le(packet.data() + at_place, part.place);
  packet[at_part] = std::byte{part.part};
  packet[at_parts] = std::byte{part.parts};
  const std::span<std::byte> own = packet.subspan(sum_part_header_bytes, padded);
  std::copy(part.chunk.exponents.begin(), part.chunk.exponents.end(), own.begin());
  std::fill(own.begin() + static_cast<std::ptrdiff_t>(exponents), own.end(), std::byte{0});
}

ChunkHeader Run::member(std::uint32_t at) const {
  ChunkHeader header = first;
  header.chunk += at;
  header.slot = static_cast<std::uint16_t>(first.slot + at);
  header.version = versions >> at & 1;
  if (header.ahead_operation != no_ahead) header.ahead_chunk += at;
  return header;
}

bool Run::take(const ChunkHeader& next) {
  const std::uint32_t at = members == 0 ? 0 : next.chunk - first.chunk;
  if (at >= most) return false;
  Run with = *this;
  if (members == 0) with.first = next;
  with.members |= static_cast<std::uint16_t>(1U << at);
  with.versions |= static_cast<std::uint16_t>(next.version << at);
  if (with.member(at) != next) return false;
  with.first.version = 0;
  *this = with;
  return true;
}

ParseError parse_waiting(std::span<const std::byte> bytes, const Common& common, WaitingPacket& out) {
  if (bytes.size() < waiting_header_bytes) return ParseError::length;
  const std::size_t set = bytes.size() - waiting_header_bytes;
  if (set % 8 != 0 || set > max_workers / 8) return ParseError::length;
  const std::uint8_t round = byte_at(bytes, at_waiting_round);
  if (round > 1 || byte_at(bytes, at_waiting_reserved) != 0) return ParseError::field;
  const std::byte* p = bytes.data();
  Ranks::Words words{};
  for (std::size_t i = 0; i < set / 8; ++i) words[i] = load_le<std::uint64_t>(p + at_waiting_missing + 8 * i);
  if (set != 0 && words[set / 8 - 1] == 0) return ParseError::length;
  out = {common,
         load_le<std::uint64_t>(p + at_operation),
         load_le<std::uint32_t>(p + at_chunk),
         load_le<std::uint16_t>(p + at_waiting_slot),
         round == 1,
         Ranks::from_words(words),
         load_le<std::uint32_t>(p + at_overtaken_by)};
  return ParseError::none;
}

ParseError parse_mismatch(std::span<const std::byte> bytes, const Common& common, MismatchPacket& out) {
  if (bytes.size() != mismatch_bytes) return ParseError::length;
  const std::byte* p = bytes.data();
  out = {common,
         load_le<std::uint64_t>(p + at_operation),
         load_le<std::uint32_t>(p + at_chunk),
         load_le<std::uint32_t>(p + at_first_signature),
         load_le<std::uint32_t>(p + at_second_signature),
         load_le<std::uint16_t>(p + at_first_rank),
         load_le<std::uint16_t>(p + at_second_rank)};
  return out.first_rank < max_workers && out.second_rank < max_workers ? ParseError::none : ParseError::field;
}

ParseError parse_probe(std::span<const std::byte> bytes, const Common& common, ProbePacket& out) {
  if (bytes.size() < probe_reply_bytes) return ParseError::truncated;
  if (common.type == Type::probe_reply && bytes.size() != probe_reply_bytes) return ParseError::length;
  const auto padding = bytes.subspan(common.type == Type::probe ? at_cookie : probe_reply_bytes);
  std::byte set{0};
  for (const std::byte byte : padding) set |= byte;  // without an early end, so that it becomes vectors
  if (set != std::byte{0}) return ParseError::field;
  out = {common, load_le<std::uint32_t>(bytes.data() + at_sequence), load_le<std::uint64_t>(bytes.data() + at_cookie)};
  return ParseError::none;
}

void write_chunk_header(std::span<std::byte> packet, const Common& common, const ChunkHeader& header) {
  for_header_words(common, header, [&](std::size_t at, std::uint64_t word) { store_le(packet.data() + at, word); });
  for (std::size_t i = header.exponents; i < padded_exponents(header.exponents); ++i) {
    packet[chunk_header_bytes + i] = std::byte{0};
  }
}

void write_run_header(std::span<std::byte> packet, const Common& common, const Run& run) {
  ChunkHeader header = run.first;
  header.elements = run.members;
  write_chunk_header(packet, common, header);
  store_le(packet.data() + at_versions, run.versions);
  store_le(packet.data() + at_run_reserved, std::uint16_t{0});
  const std::size_t exponents = std::size_t{run.size()} * run.first.exponents;
  std::ranges::fill(packet.first(run_bytes(run)).subspan(run_header_bytes + exponents), std::byte{0});
}

bool has_header(std::span<const std::byte> packet, const Common& common, const ChunkHeader& header) {
  if (packet.size() != chunk_packet_bytes(header)) return false;
  std::uint64_t different = 0;
  for_header_words(common, header, [&](std::size_t at, std::uint64_t word) {
    const std::uint64_t compared = at == 0 ? (std::uint64_t{1} << 8 * at_checksum) - 1 : ~std::uint64_t{0};
    different |= (load_le<std::uint64_t>(packet.data() + at) ^ word) & compared;
  });
  if (different != 0 || !valid_exponents(packet.data() + chunk_header_bytes, header.exponents)) return false;
  return load_le<std::uint32_t>(packet.data() + at_checksum) == (common.checked ? checksum_of(packet) : 0);
}

void seal(std::span<std::byte> packet) {
  const bool checked = byte_at(packet, at_type) >> integrity_shift == checksummed;
  store_le(packet.data() + at_checksum, checked ? checksum_of(packet) : 0);
}

void reseal(std::span<std::byte> packet, PacketSecurity security) {
  const std::uint8_t integrity =
      integrity_of({.type = {}, .sender = 0, .job_epoch = 0, .rank_epoch = 0, .security = security});
  packet[at_type] = static_cast<std::byte>((byte_at(packet, at_type) & type_bits) | integrity << integrity_shift);
  seal(packet);
}

std::size_t waiting_bytes(const Ranks& missing) {
  std::size_t words = Ranks::word_count;
  while (words > 0 && missing.words()[words - 1] == 0) --words;
  return waiting_header_bytes + words * 8;
}

void write_waiting(std::span<std::byte> packet, const WaitingPacket& waiting) {
  write_common(packet, waiting.common);
  std::byte* p = packet.data();
  store_le(p + at_chunk, waiting.chunk);
  store_le(p + at_operation, waiting.operation);
  store_le(p + at_waiting_slot, waiting.slot);
  p[at_waiting_round] = std::byte{waiting.exponent_round};
  p[at_waiting_reserved] = std::byte{0};
  store_le(p + at_overtaken_by, waiting.overtaken_by);
  const std::size_t words = (packet.size() - waiting_header_bytes) / 8;
  for (std::size_t i = 0; i < words; ++i) store_le(p + at_waiting_missing + 8 * i, waiting.missing.words()[i]);
  seal(packet);
}

void write_mismatch(std::span<std::byte> packet, const MismatchPacket& mismatch) {
  write_common(packet, mismatch.common);
  std::byte* p = packet.data();
  store_le(p + at_chunk, mismatch.chunk);
  store_le(p + at_operation, mismatch.operation);
  store_le(p + at_first_signature, mismatch.first_signature);
  store_le(p + at_second_signature, mismatch.second_signature);
  store_le(p + at_first_rank, mismatch.first_rank);
  store_le(p + at_second_rank, mismatch.second_rank);
  seal(packet);
}

void write_unknown_job(std::span<std::byte> packet, const Common& asked) {
  write_common(packet, {Type::unknown_job, 0, asked.job_epoch, asked.rank_epoch});
  seal(packet);
}

void write_probe(std::span<std::byte> packet, const ProbePacket& probe) {
  write_common(packet, probe.common);
  store_le(packet.data() + at_sequence, probe.sequence);
  store_le(packet.data() + at_cookie, probe.cookie);
  std::fill(packet.begin() + probe_reply_bytes, packet.end(), std::byte{0});
  seal(packet);
}

}  // namespace netsum::wire::switchml
