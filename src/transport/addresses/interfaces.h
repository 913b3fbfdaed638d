// This host's network interfaces and addresses.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/endpoint.h"

namespace netsum::transport {

// Whether this network namespace delivers packets for the address (any port) to itself, so that they cross no link.
// According to the system's routes; false if they cannot be read.
[[nodiscard]] bool is_of_this_host(const Endpoint& address);

struct Interface {
  std::string name;
  std::uint32_t mtu = 0;
  bool loopback = false;  // not reachable from other hosts
};
// The interface with this address (any port), if this host has one.
[[nodiscard]] std::optional<Interface> interface_of(const Endpoint& address);

// What packets to this host have for their destination.
struct OwnStations {
  std::map<std::uint32_t, std::array<std::uint8_t, 6>> ethernet;  // by the interface's index
  std::set<std::array<std::uint8_t, 4>> ipv4;
};
// Throws Error: internal.
[[nodiscard]] OwnStations own_stations();

}  // namespace netsum::transport
