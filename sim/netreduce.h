// NetReduce under the simulator: hosts with software queue pairs, and tunnels to the accelerators, which run on the
// aggregators.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_netreduce();

}  // namespace netsum::sim
