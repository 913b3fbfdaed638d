// NetReduce under the simulator: hosts with software queue pairs, and tunnels to the accelerators, which run on the
// aggregators.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_netreduce();

// Rings with messages of several packets, whose numbers wrap in half of the jobs.
// `tunnelled`: some with packets longer than RoCE's.
void draw_rings(Scenario& scenario, bool tunnelled);

}  // namespace netsum::sim
