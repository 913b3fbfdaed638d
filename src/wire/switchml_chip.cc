#include "wire/switchml_chip.h"

#include "base/bytes.h"

namespace netsum::wire::chip {
namespace {

// Offsets of docs/protocol-switchml-chip.md.
constexpr std::size_t at_type = 1, at_member = 2, at_version = 3, at_slot = 4, at_rank = 6, at_round = 16, at_exponents = 20;
constexpr std::size_t at_operation = 24, at_chunk = 32, at_signature = 36, at_ahead_chunk = 40, at_ahead_operation = 44,
                      at_kind = 46;
static_assert(at_exponents + 4 == at_operation);
static_assert(at_kind + 2 == header_bytes);

std::uint8_t byte_at(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<std::uint8_t>(bytes[at]);
}

}  // namespace

ParseError parse(std::span<const std::byte> bytes, Packet& out) {
  if (bytes.size() < header_bytes) return ParseError::truncated;
  if (byte_at(bytes, at_format) != format) return ParseError::version;
  const std::uint8_t type = byte_at(bytes, at_type);
  if (type != static_cast<std::uint8_t>(Type::contribution) && type != static_cast<std::uint8_t>(Type::result)) {
    return ParseError::type;
  }
  if (bytes.size() != packet_bytes(64) && bytes.size() != packet_bytes(256)) return ParseError::length;

  const std::byte* const p = bytes.data();
  Header& header = out.header;
  header.type = static_cast<Type>(type);
  header.member = byte_at(bytes, at_member);
  header.version = byte_at(bytes, at_version);
  header.slot = load_be<std::uint16_t>(p + at_slot);
  header.rank = load_be<std::uint16_t>(p + at_rank);
  header.job_epoch = load_le<std::uint64_t>(p + at_job_epoch);
  header.round = load_be<std::uint32_t>(p + at_round);
  for (std::size_t i = 0; i < header.exponents.size(); ++i) {
    header.exponents[i] = load_be<std::uint16_t>(p + at_exponents + 2 * i);
    if (header.exponents[i] > unknown) return ParseError::field;
  }
  if (header.member >= max_members || header.version > 1 || header.round > max_round) return ParseError::field;
  header.echoed = {load_be<std::uint64_t>(p + at_operation),       load_be<std::uint32_t>(p + at_chunk),
                   load_be<std::uint32_t>(p + at_signature),       load_be<std::uint32_t>(p + at_ahead_chunk),
                   load_be<std::uint16_t>(p + at_ahead_operation), load_be<std::uint16_t>(p + at_kind)};
  out.payload = bytes.subspan(header_bytes);
  return ParseError::none;
}

void write_header(std::span<std::byte> packet, const Header& header) {
  std::byte* const p = packet.data();
  p[at_format] = std::byte{format};
  p[at_type] = static_cast<std::byte>(header.type);
  p[at_member] = std::byte{header.member};
  p[at_version] = std::byte{header.version};
  store_be(p + at_slot, header.slot);
  store_be(p + at_rank, header.rank);
  store_le(p + at_job_epoch, header.job_epoch);
  store_be(p + at_round, header.round);
  for (std::size_t i = 0; i < header.exponents.size(); ++i) store_be(p + at_exponents + 2 * i, header.exponents[i]);
  store_be(p + at_operation, header.echoed.operation);
  store_be(p + at_chunk, header.echoed.chunk);
  store_be(p + at_signature, header.echoed.signature);
  store_be(p + at_ahead_chunk, header.echoed.ahead_chunk);
  store_be(p + at_ahead_operation, header.echoed.ahead_operation);
  store_be(p + at_kind, header.echoed.kind);
}

}  // namespace netsum::wire::chip
