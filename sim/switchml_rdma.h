// SwitchML over RoCEv2 UC, for the simulator: packets, IP header to ICRC, travel in datagrams.
#pragma once

#include <memory>

#include "sim/protocol.h"

namespace netsum::sim {

[[nodiscard]] std::unique_ptr<Protocol> make_switchml_rdma();

// How a job's floats are added, from the elements of its longest message.
void set_blocks(JobPlan& job);

}  // namespace netsum::sim
