// The host that this process is on DPDK's ports, by a plugin that is loaded when it is first wanted, so that nobody else
// needs DPDK.
#pragma once

#include <cstdint>
#include <memory>

#include "netsum/types.h"
#include "transport/bypass/frame_host.h"

namespace netsum::transport {

// The first call of a process takes the ports, until the process ends; the others get the same host. `queues`: pairs wanted
// of each port, one for a lane. Throws Error: bad_argument (the options), refused (no plugin, no port, no memory, not
// permitted; a former call had other options).
[[nodiscard]] std::shared_ptr<FrameHost> dpdk_host(const DpdkOptions& options, std::uint32_t queues);

}  // namespace netsum::transport
