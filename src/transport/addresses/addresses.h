// Endpoints as text, as socket addresses, and what their headers cost on the wire.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"

namespace netsum::transport {

// "host:port" or "[v6]:port". A host with addresses of both families resolves to IPv4, which servers listen on by default.
// Throws Error: bad_argument (not of that form), unreachable (no such host).
[[nodiscard]] Endpoint resolve(const std::string& address);
[[nodiscard]] std::vector<Endpoint> resolve_all(const std::string& address);  // IPv4 first
// None: the host is a name. Never asks a name server. Throws Error: bad_argument.
[[nodiscard]] std::optional<Endpoint> resolve_numeric(const std::string& address);
[[nodiscard]] std::string to_string(const Endpoint& endpoint);
[[nodiscard]] bool is_ipv4(const Endpoint& endpoint);
[[nodiscard]] bool is_unspecified(const Endpoint& endpoint);
// 127.0.0.0/8 or ::1: no kernel takes a packet with it from a link. Of a host's other addresses, IPv6 takes them.
[[nodiscard]] bool is_loopback(const Endpoint& endpoint);

[[nodiscard]] Endpoint endpoint_of(const sockaddr_storage& address);

// Writes a socket address of the given family to `storage` and returns its length; 0 if an IPv4 socket cannot reach
// `endpoint`.
[[nodiscard]] socklen_t to_sockaddr(const Endpoint& endpoint, bool ipv6, sockaddr_storage& storage);

// Ethernet, IP and UDP headers of one datagram.
[[nodiscard]] inline std::size_t header_bytes(const Endpoint& peer) {
  return 14 + (is_ipv4(peer) ? 20u : 40u) + 8;
}

}  // namespace netsum::transport
