// An experiment as flows, beyond the reach of packets: how long each all-reduce takes follows from rates, windows, depth and
// round trips. docs/simulator.md has what it assumes.
#pragma once

#include "sim/experiment.h"

namespace netsum::sim {

// Without series and counters. Throws std::invalid_argument if the experiment cannot be run as flows.
[[nodiscard]] Report run_flows(const Experiment& experiment);

}  // namespace netsum::sim
