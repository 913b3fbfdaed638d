// Trees of switches below the aggregators, for protocols that have them.
#pragma once

#include "sim/scenario.h"

namespace netsum::sim {

// In half of the clusters, a tree of switches; 4 racks of 8 for jobs of 32 and more.
void draw_racks(Scenario& scenario);

}  // namespace netsum::sim
