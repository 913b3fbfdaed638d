#include "wire/p4app.h"

#include "base/bytes.h"

namespace netsum::wire::p4app {
namespace {

// Type in the upper half of the first byte, size in the lower three bits; one bit between is unused.
constexpr std::uint8_t sum_type = 1, size_mask = 7;
constexpr std::uint16_t set_bit = 0x8000, slot_mask = 0x3fff;

}  // namespace

ParseError parse(std::span<const std::byte> bytes, Packet& packet) {
  if (bytes.size() < header_bytes) return ParseError::truncated;
  const auto first = std::to_integer<std::uint8_t>(bytes[0]);
  if (first >> 4 != sum_type) return ParseError::type;
  Header& header = packet.header;
  header.elements = elements_of(first & size_mask);
  if (header.elements == 0) return ParseError::field;
  if (bytes.size() != packet_bytes(header.elements)) return ParseError::length;
  header.job = std::to_integer<std::uint8_t>(bytes[1]);
  header.packet = load_le<std::uint32_t>(bytes.data() + 2);
  const auto pool_index = load_be<std::uint16_t>(bytes.data() + 6);
  header.slot = pool_index & slot_mask;
  header.set = (pool_index & set_bit) != 0;
  for (std::size_t i = 0; i < header.exponents.size(); ++i) header.exponents[i] = std::to_integer<std::int8_t>(bytes[8 + i]);
  packet.payload = bytes.subspan(header_bytes);
  return ParseError::none;
}

void write_header(std::span<std::byte> packet, const Header& header) {
  packet[0] = static_cast<std::byte>(sum_type << 4 | size_of(header.elements));
  packet[1] = static_cast<std::byte>(header.job);
  store_le(packet.data() + 2, header.packet);
  store_be(packet.data() + 6, static_cast<std::uint16_t>((header.set ? set_bit : 0) | header.slot));
  for (std::size_t i = 0; i < header.exponents.size(); ++i) packet[8 + i] = static_cast<std::byte>(header.exponents[i]);
}

}  // namespace netsum::wire::p4app
