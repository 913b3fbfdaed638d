// Trees of switches below the aggregators, for protocols that have them.
#pragma once

#include "sim/scenario.h"

namespace netsum::sim {

// In half of the clusters, a tree of switches; racks of 8 for jobs of 32 and more. `most`: ranks that need none.
void draw_racks(Scenario& scenario, std::uint32_t most = UINT32_MAX);

}  // namespace netsum::sim
