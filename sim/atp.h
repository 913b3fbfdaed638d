// ATP under the simulator: parameter servers are its aggregators, with switches below them.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_atp();

}  // namespace netsum::sim
