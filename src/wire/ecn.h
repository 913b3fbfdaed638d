// Explicit congestion notification (RFC 3168) in a raw IPv4 or IPv6 packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace netsum::wire {

// The two bits, as they are on the wire.
enum class Ecn : std::uint8_t { not_capable = 0, capable_1 = 1, capable_0 = 2, congestion = 3 };

// Of an IP header's traffic class, or IPv4's type of service.
[[nodiscard]] constexpr Ecn ecn_of(std::uint8_t traffic_class) {
  return static_cast<Ecn>(traffic_class & 3);
}
// Of a packet that was inside of a marked datagram (RFC 6040).
[[nodiscard]] constexpr std::uint8_t marked(std::uint8_t traffic_class) {
  return ecn_of(traffic_class) == Ecn::not_capable ? traffic_class : traffic_class | 3;
}

// Empty if these are no IPv4 or IPv6 packet, or not its whole header.
[[nodiscard]] std::optional<Ecn> ecn_of(std::span<const std::byte> packet);

// Sets CE in a packet whose sender says that it understands it, and keeps IPv4's header checksum right. False, and the
// packet is as it was, if it is another, or says CE already.
bool mark_congestion(std::span<std::byte> packet);

}  // namespace netsum::wire
