// What a bump's options say of rings and of its place among bumps, checked before a port is opened.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/bump_daemon.h"
#include "protocol/netreduce/ring_config.h"

namespace netsum::daemon {

// Each function throws Error: bad_argument.

[[nodiscard]] std::vector<netreduce::HostAddress> parse_hosts(const std::vector<std::string>& texts);

// Those that are summed here, each with an incarnation; `log` hears of the others. `hosts`: those of the options.
[[nodiscard]] std::vector<netreduce::RingConfig> parse_rings(const BumpOptions& options,
                                                             const std::vector<netreduce::HostAddress>& hosts,
                                                             const std::function<void(const std::string&)>& log);

// Whether the options of ports, threads and racks go together.
void check_wiring(const BumpOptions& options);

// For rings that ranks name. Throws Error: refused, a host next to this bump is none of `hosts`; empty: any is.
void check_hosts(const netreduce::RingConfig& ring, const std::vector<netreduce::HostAddress>& hosts);

}  // namespace netsum::daemon
