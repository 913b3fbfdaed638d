// This host's network interfaces.
#pragma once

#include <cstdint>
#include <optional>

#include "base/endpoint.h"

namespace netsum::transport {

// The MTU of the interface that has this address, whatever the port; none if none of this host's does.
[[nodiscard]] std::optional<std::uint32_t> mtu_of_interface(const Endpoint& address);

}  // namespace netsum::transport
