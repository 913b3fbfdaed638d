// The path of a datagram from this host to a peer.
#pragma once

#include <cstdint>

#include "base/endpoint.h"

namespace netsum::transport {

struct Path {
  Endpoint local;         // source address; the port is arbitrary
  std::uint32_t mtu = 0;  // IP headers included
};
[[nodiscard]] Path path_towards(const Endpoint& peer);  // throws Error: unreachable

}  // namespace netsum::transport
