// SwitchML's chip profile, for the simulator.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_switchml_chip();

}  // namespace netsum::sim
