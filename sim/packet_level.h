// An experiment packet by packet: the product's ranks, aggregators and switches, over the experiment's network.
#pragma once

#include "sim/experiment.h"

namespace netsum::sim {

// Until all jobs have ended, or until the experiment's end. Throws std::invalid_argument for what no network could be, and
// for a series of a counter that there is not.
[[nodiscard]] Report run_packets(const Experiment& experiment);

}  // namespace netsum::sim
