// NetReduce's packets in tunnels between neighbours that have keys. A node finds a packet's job by its connection, which no
// two rings of a lane share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "protocol/netreduce/connection.h"
#include "protocol/netreduce/tunnel.h"
#include "seal/hops.h"

namespace netsum::netreduce {

[[nodiscard]] inline std::uint64_t mark_of(const Connection& connection) {
  return ConnectionHash()(connection);
}

// The mark of a tunnelled packet's connection, from the IP header on; none: the packet is too short to have one.
[[nodiscard]] inline std::optional<std::uint64_t> mark_of(std::span<const std::byte> packet) {
  constexpr std::size_t udp_bytes = 8, qp_at = 5;  // in the base transport header
  if (packet.empty()) return std::nullopt;
  const bool ipv4 = std::to_integer<std::uint8_t>(packet[0]) >> 4 == 4;
  const std::size_t ip_bytes = ipv4 ? 20 : 40, address_bytes = ipv4 ? 4 : 16, source_at = ipv4 ? 12 : 8;
  const std::size_t at = ip_bytes + udp_bytes + qp_at;
  if (packet.size() < at + 3) return std::nullopt;
  Connection connection;
  if (ipv4) connection.source[10] = connection.source[11] = connection.destination[10] = connection.destination[11] = 0xff;
  std::memcpy(connection.source.data() + 16 - address_bytes, packet.data() + source_at, address_bytes);
  std::memcpy(connection.destination.data() + 16 - address_bytes, packet.data() + source_at + address_bytes, address_bytes);
  for (std::size_t i = 0; i < 3; ++i) {
    connection.destination_qp = connection.destination_qp << 8 | std::to_integer<std::uint32_t>(packet[at + i]);
  }
  return mark_of(connection);
}

// Of all connections whose packets this node receives or sends.
[[nodiscard]] inline std::vector<std::uint64_t> marks_of(const TunnelRing& ring) {
  std::vector<std::uint64_t> marks;
  for (const TunnelRoute& route : ring.routes) marks.push_back(mark_of(route.connection));
  // Sums go up on one connection and come back on the other; only the one that arrives has a route.
  if (ring.ring.uplink) marks.push_back(mark_of(ring.ring.uplink->up));
  for (const Line& line : ring.ring.lines) {
    if (line.way == Way::child) marks.push_back(mark_of(Uplink{line.connection, {}}.down()));
  }
  return marks;
}

// The headers up to the base transport header stay readable, with IPv6.
inline constexpr std::size_t clear_bytes = 60;
[[nodiscard]] inline seal::Hops no_hops() {
  return seal::Hops({.mark = [](std::span<const std::byte> packet) { return mark_of(packet); }, .clear = clear_bytes});
}

}  // namespace netsum::netreduce
