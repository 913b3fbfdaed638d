// What the kernel knows of this host's network interfaces, by index. What it does not say is unknown: no error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/addresses/interfaces.h"
#include "transport/addresses/next_hop.h"

namespace netsum::transport {

// Switched on, and with a carrier.
[[nodiscard]] bool is_up(std::uint32_t interface);

// The bridge or bond that the interface is a part of.
[[nodiscard]] std::optional<std::uint32_t> master_of(std::uint32_t interface);
[[nodiscard]] std::vector<std::string> parts_of(std::uint32_t master);
// The port by which a bridge sends to that address. None: no bridge, or it has not heard from there lately.
[[nodiscard]] std::optional<std::uint32_t> bridge_port(std::uint32_t bridge, const EthernetAddress& to);

// The Ethernet address of frames to this host that arrive there: at a bridge's port the bridge's. None: not Ethernet.
[[nodiscard]] std::optional<EthernetAddress> station_at(std::uint32_t interface, const OwnStations& own);

// The VLANs that are interfaces of their own above this one.
[[nodiscard]] std::vector<std::string> vlans_above(std::uint32_t interface);

// Whether XDP programs of other interfaces' drivers can send frames by it. None: a kernel before 6.3 does not say.
[[nodiscard]] std::optional<bool> sends_for_drivers(std::uint32_t interface);

}  // namespace netsum::transport
