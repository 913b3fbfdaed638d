// IPv4 addresses, and endpoints of them, which hold them as IPv4-mapped ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/endpoint.h"

namespace netsum::wire {

using Ipv4 = std::array<std::uint8_t, 4>;

inline constexpr std::size_t ipv4_in_endpoint = 12;  // of its bytes

[[nodiscard]] inline Endpoint ipv4_endpoint(const Ipv4& address, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.address[10] = endpoint.address[11] = 0xff;
  std::copy(address.begin(), address.end(), endpoint.address.begin() + ipv4_in_endpoint);
  endpoint.port = port;
  return endpoint;
}

[[nodiscard]] inline Ipv4 ipv4_of(const Endpoint& endpoint) {
  Ipv4 address;
  std::copy(endpoint.address.begin() + ipv4_in_endpoint, endpoint.address.end(), address.begin());
  return address;
}

}  // namespace netsum::wire
