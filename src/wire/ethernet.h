// The headers before IP on a port: Ethernet II, with up to two VLAN tags.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace netsum::wire::ethernet {

using Address = std::array<std::uint8_t, 6>;
inline constexpr std::size_t header_bytes = 14, tag_bytes = 4;

struct Header {
  Address destination{}, source{};
  std::uint16_t type = 0;  // after the tags
  std::size_t bytes = 0;   // with the tags
};

// None: too short.
[[nodiscard]] std::optional<Header> parse(std::span<const std::byte> frame);

// Marks the IP packet in a frame, as ecn.h says. A train's header is that of all its packets.
bool mark_congestion(std::span<std::byte> frame);

[[nodiscard]] constexpr bool is_multicast(const Address& address) {
  return (address[0] & 1) != 0;
}
inline constexpr std::uint16_t ipv4 = 0x0800, arp = 0x0806, ipv6 = 0x86dd, vlan = 0x8100, provider_vlan = 0x88a8;

}  // namespace netsum::wire::ethernet
