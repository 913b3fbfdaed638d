// SwitchML in the simulator: the binaries' own switch and worker.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_switchml();

}  // namespace netsum::sim
