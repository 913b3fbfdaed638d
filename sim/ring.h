// A ring all-reduce under the simulator, for comparison: no switch sums. In 2(n - 1) steps each rank sends a part of the
// tensor to the next one, which adds its own values, and after n - 1 steps passes sums on. Packet by packet: one goes on as
// soon as it has come, so that steps overlap. Ranks join at an aggregator, which no data passes.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_ring();

}  // namespace netsum::sim
