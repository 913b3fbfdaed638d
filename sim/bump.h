// NetReduce through a bump in the wire: hosts with network cards, whose frames cross the bump's bridge. The bump knows their
// rings because ranks join there, or learns them from packets. In some clusters each rack has a bump, and a rack's cables
// lead to its bump; from there one leads to the next bump on the way to the one where ranks join.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_bump();

}  // namespace netsum::sim
