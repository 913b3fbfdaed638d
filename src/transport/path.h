// How a datagram from here gets there.
#pragma once

#include <cstdint>

#include "base/endpoint.h"

namespace netsum::transport {

struct Path {
  Endpoint local;         // its source, with any port
  std::uint32_t mtu = 0;  // IP headers included
};
[[nodiscard]] Path path_towards(const Endpoint& peer);  // throws Error: unreachable

}  // namespace netsum::transport
