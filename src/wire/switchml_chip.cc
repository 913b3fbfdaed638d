#include "wire/switchml_chip.h"

#include <cstddef>
#include <cstring>

namespace netsum::wire::chip {
namespace {

static_assert(sizeof(ChipHeader) == header_bytes);
static_assert(offsetof(ChipHeader, format) == at_format && offsetof(ChipHeader, job_epoch) == at_job_epoch);
static_assert(offsetof(ChipHeader, operation) == 24 && offsetof(ChipHeader, kind) == 46);  // nothing is between the fields

constexpr bool is(ChipFault fault, ParseError error) {
  return static_cast<std::size_t>(fault) == static_cast<std::size_t>(error);
}
static_assert(is(chip_no_fault, ParseError::none) && is(chip_truncated, ParseError::truncated) &&
              is(chip_other_format, ParseError::version) && is(chip_no_type, ParseError::type) &&
              is(chip_no_length, ParseError::length) && is(chip_no_value, ParseError::field));
static_assert(static_cast<std::size_t>(chip_faults) == parse_error_kinds);

}  // namespace

ParseError parse(std::span<const std::byte> bytes, Packet& out) {
  ChipHeader raw;
  if (bytes.size() < sizeof raw) return ParseError::truncated;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  const std::size_t length = bytes.size() <= packet_bytes(chip_many_elements) ? bytes.size() : 0;
  if (const ChipFault fault = chip_fault(&raw, static_cast<std::uint32_t>(length)); fault != chip_no_fault) {
    return static_cast<ParseError>(fault);
  }
  Header& header = out.header;
  header.type = static_cast<Type>(raw.type);
  header.member = raw.member;
  header.version = raw.version;
  header.slot = chip_host16(raw.slot);
  header.rank = chip_host16(raw.rank);
  header.job_epoch = raw.job_epoch;
  header.round = chip_host32(raw.round);
  header.exponents = {chip_host16(raw.exponents[0]), chip_host16(raw.exponents[1])};
  header.echoed = {chip_host64(raw.operation),   chip_host32(raw.chunk),           chip_host32(raw.signature),
                   chip_host32(raw.ahead_chunk), chip_host16(raw.ahead_operation), chip_host16(raw.kind)};
  out.payload = bytes.subspan(header_bytes);
  return ParseError::none;
}

void write_header(std::span<std::byte> packet, const Header& header) {
  const Echoed& echoed = header.echoed;
  const ChipHeader raw{.format = format,
                       .type = static_cast<std::uint8_t>(header.type),
                       .member = header.member,
                       .version = header.version,
                       .slot = chip_host16(header.slot),
                       .rank = chip_host16(header.rank),
                       .job_epoch = header.job_epoch,
                       .round = chip_host32(header.round),
                       .exponents = {chip_host16(header.exponents[0]), chip_host16(header.exponents[1])},
                       .operation = chip_host64(echoed.operation),
                       .chunk = chip_host32(echoed.chunk),
                       .signature = chip_host32(echoed.signature),
                       .ahead_chunk = chip_host32(echoed.ahead_chunk),
                       .ahead_operation = chip_host16(echoed.ahead_operation),
                       .kind = chip_host16(echoed.kind)};
  std::memcpy(packet.data(), &raw, sizeof raw);
}

}  // namespace netsum::wire::chip
