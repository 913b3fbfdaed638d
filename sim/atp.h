// ATP under the simulator: parameter servers are its aggregators, with switches below them.
#pragma once

#include <memory>

#include "protocol/atp/congestion_control.h"
#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_atp();
[[nodiscard]] std::unique_ptr<Protocol> make_atp(atp::MakeCongestionControl control);  // in place of AIMD
[[nodiscard]] std::unique_ptr<Protocol> make_atp_chip();                               // switches are chips, mostly

}  // namespace netsum::sim
