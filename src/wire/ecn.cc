#include "wire/ecn.h"

#include "base/bytes.h"

namespace netsum::wire {
namespace {

constexpr std::size_t ipv4_header_bytes = 20, ipv6_header_bytes = 40;

// 4, 6, or 0 if it is neither or its header is not all there.
unsigned version_of(std::span<const std::byte> packet) {
  if (packet.empty()) return 0;
  const auto version = std::to_integer<unsigned>(packet[0] >> 4);
  if (version == 4) {
    const std::size_t header = std::to_integer<std::size_t>(packet[0] & std::byte{0x0f}) * 4;
    return header >= ipv4_header_bytes && header <= packet.size() ? 4 : 0;
  }
  return version == 6 && packet.size() >= ipv6_header_bytes ? 6 : 0;
}

// RFC 1624, equation 3: in one's complement, HC' = ~(~HC + ~m + m'). A wrong checksum stays wrong by as much as it was, so
// that damage done before us is still found at the receiver.
std::uint16_t updated_checksum(std::uint32_t checksum, std::uint32_t before, std::uint32_t after) {
  std::uint32_t sum = (~checksum & 0xffff) + (~before & 0xffff) + after;
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

}  // namespace

std::optional<Ecn> ecn_of(std::span<const std::byte> packet) {
  switch (version_of(packet)) {
    case 4:  // the low bits of the second byte
      return static_cast<Ecn>(packet[1] & std::byte{0x03});
    case 6:  // the low bits of the traffic class, which lies across the first two bytes
      return static_cast<Ecn>((packet[1] >> 4) & std::byte{0x03});
    default:
      return std::nullopt;
  }
}

bool mark_congestion(std::span<std::byte> packet) {
  const auto ecn = ecn_of(packet);
  if (ecn != Ecn::capable_0 && ecn != Ecn::capable_1) return false;
  if (version_of(packet) == 6) {
    packet[1] |= std::byte{0x30};  // IPv6 has no header checksum, and no other covers the traffic class
    return true;
  }
  const auto before = load_be<std::uint16_t>(packet.data());
  packet[1] |= std::byte{0x03};
  std::byte* const checksum = &packet[10];
  store_be(checksum, updated_checksum(load_be<std::uint16_t>(checksum), before, load_be<std::uint16_t>(packet.data())));
  return true;
}

}  // namespace netsum::wire
