// The chip profile's switch in P4 (p4/netsum_v1model.p4), run by bmv2's simple_switch: what a daemon does with it.
#pragma once

#include <string>
#include <vector>

#include "base/endpoint.h"
#include "service/chip_plane.h"

namespace netsum::dataplane::bmv2 {

struct Config {
  std::string target;           // "host:port" of the running simple_switch's Thrift server
  std::vector<Endpoint> lanes;  // where packets are sent; each has a socket here for everything else
};

// Empties the switch, and makes it ready for jobs. It stays connected until the last plane and the last of its jobs have
// ended. Throws Error: unreachable, refused (it runs another program; this netsum has no bmv2).
[[nodiscard]] service::ChipPlanes open(const Config& config);

}  // namespace netsum::dataplane::bmv2
