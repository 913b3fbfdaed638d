// NetReduce under the simulator: hosts with queue pairs of our own, and tunnels to the accelerators that the aggregators
// are.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_netreduce();

}  // namespace netsum::sim
