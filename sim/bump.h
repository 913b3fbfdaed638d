// NetReduce through a bump in the wire: hosts with network cards, whose frames cross the bump's bridge. The bump knows their
// rings because ranks join there, or learns them from packets.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_bump();

}  // namespace netsum::sim
