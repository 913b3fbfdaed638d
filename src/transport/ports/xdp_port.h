// An Ethernet interface as a port, by AF_XDP: all frames that it receives come here, and the kernel sees none of them. So it
// need have no address, and neither a packet socket nor a bridge may be on it. It has no trains and leaves no checksum to
// others: hosts at its other end must compute theirs and cut their trains (on veth: ethtool -K IFNAME tx off). A NIC must
// leave VLAN tags in frames (ethtool -K IFNAME rxvlan off txvlan off).
#pragma once

#include <memory>
#include <string>

#include "transport/ports/port.h"

namespace netsum::transport {

// Throws Error: bad_argument (no such interface, or no Ethernet; its MTU is too long), refused (not permitted, the interface
// is down or has an XDP program, no memory; this netsum or the kernel has no AF_XDP).
[[nodiscard]] std::unique_ptr<Port> open_xdp_port(const std::string& interface, const PortOptions& options);

}  // namespace netsum::transport
