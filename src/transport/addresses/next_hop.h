// How this host's kernel would send to an address: for who writes Ethernet frames by himself.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/endpoint.h"
#include "base/time.h"

namespace netsum::transport {

using EthernetAddress = std::array<std::uint8_t, 6>;

struct NextHop {
  std::uint32_t interface = 0;           // index
  EthernetAddress own{};                 // the interface's
  EthernetAddress neighbour{};           // the destination's, or its gateway's
  std::array<std::uint8_t, 4> source{};  // the IPv4 address that the kernel would send from
};

// According to the system's routes and neighbours, which are asked for the Ethernet address if they do not know it; that may
// take `patience`. Throws Error: unreachable (not IPv4, no route, nobody answers), bad_argument (this host itself, or by way
// of an interface that is not Ethernet).
[[nodiscard]] NextHop next_hop(const Endpoint& to, Duration patience);

// The interface by which it would. Throws as next_hop() does, but for neighbours.
[[nodiscard]] std::string interface_towards(const Endpoint& to);

struct EthernetInterface {
  std::uint32_t index = 0;
  EthernetAddress address{};
};
// Throws Error: bad_argument.
[[nodiscard]] EthernetInterface ethernet_interface(const std::string& name);
[[nodiscard]] std::string interface_name(std::uint32_t index);

}  // namespace netsum::transport
