#include "protocol/baseline/packet.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace netsum::baseline {
namespace {

constexpr std::size_t checksum_at = 4;
constexpr std::uint8_t floats_flag = 1, average_flag = 2;

bool has_values(Type type) {
  return type == Type::contribution || type == Type::result;
}

// Of all bytes but the checksum's own.
std::uint32_t checksum_of(std::span<const std::byte> bytes) {
  return crc32c(bytes.subspan(checksum_at + 4), crc32c(bytes.first(checksum_at)));
}

}  // namespace

std::size_t bytes_of(const Packet& packet) {
  return header_bytes + (has_values(packet.type) ? std::size_t{packet.elements} * 4 : 8);
}

void write(const Packet& packet, std::span<std::byte> to) {
  std::byte* const p = to.data();
  std::fill_n(p, header_bytes, std::byte{0});
  p[0] = std::byte{magic};
  p[1] = static_cast<std::byte>(packet.type);
  store_le(p + 2, packet.rank);
  store_le(p + 8, packet.job_epoch);
  store_le(p + 16, packet.rank_epoch);
  store_le(p + 20, packet.signature);
  store_le(p + 24, packet.sequence);
  store_le(p + 32, packet.elements);
  p[34] = static_cast<std::byte>((packet.floats ? floats_flag : 0) | (packet.average ? average_flag : 0));
  if (has_values(packet.type)) {
    std::copy(packet.values.begin(), packet.values.end(), p + header_bytes);
  } else if (packet.type == Type::mismatch) {
    store_le(p + header_bytes, packet.first);
    store_le(p + header_bytes + 4, packet.second);
  } else {
    store_le(p + header_bytes, packet.missing);
  }
  store_le(p + checksum_at, checksum_of(to));
}

std::optional<Packet> parse(std::span<const std::byte> bytes) {
  if (bytes.size() < header_bytes || bytes[0] != std::byte{magic}) return std::nullopt;
  const std::byte* const p = bytes.data();
  const auto type = std::to_integer<std::uint8_t>(p[1]);
  if (type < static_cast<std::uint8_t>(Type::contribution) || type > static_cast<std::uint8_t>(Type::unknown_job)) {
    return std::nullopt;
  }
  Packet packet;
  packet.type = static_cast<Type>(type);
  packet.rank = load_le<std::uint16_t>(p + 2);
  packet.job_epoch = load_le<std::uint64_t>(p + 8);
  packet.rank_epoch = load_le<std::uint32_t>(p + 16);
  packet.signature = load_le<std::uint32_t>(p + 20);
  packet.sequence = load_le<std::uint64_t>(p + 24);
  packet.elements = load_le<std::uint16_t>(p + 32);
  const auto flags = std::to_integer<std::uint8_t>(p[34]);
  packet.floats = (flags & floats_flag) != 0;
  packet.average = (flags & average_flag) != 0;
  if (packet.elements > max_packet_elements || bytes.size() != bytes_of(packet)) return std::nullopt;
  if (load_le<std::uint32_t>(p + checksum_at) != checksum_of(bytes)) return std::nullopt;
  if (has_values(packet.type)) {
    packet.values = bytes.subspan(header_bytes);
  } else if (packet.type == Type::mismatch) {
    packet.first = load_le<std::uint32_t>(p + header_bytes);
    packet.second = load_le<std::uint32_t>(p + header_bytes + 4);
  } else {
    packet.missing = load_le<std::uint64_t>(p + header_bytes);
  }
  return packet;
}

}  // namespace netsum::baseline
