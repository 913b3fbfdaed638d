// This host's network interfaces and addresses.
#pragma once

#include <cstdint>
#include <optional>

#include "base/endpoint.h"

namespace netsum::transport {

// Whether the stack of this network namespace delivers to itself what is sent to the address, whatever the port: such
// packets cross no link. The system's routes say so; without their word it is not so.
[[nodiscard]] bool is_of_this_host(const Endpoint& address);

struct Interface {
  std::uint32_t mtu = 0;
  bool loopback = false;  // no other host gets there
};
// The interface that has this address, whatever the port; none if none of this host's does.
[[nodiscard]] std::optional<Interface> interface_of(const Endpoint& address);

}  // namespace netsum::transport
