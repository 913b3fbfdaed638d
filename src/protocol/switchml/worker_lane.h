// SwitchML's end of a lane at a rank.
#pragma once

#include <memory>

#include "protocol/switchml/worker.h"
#include "protocol/worker_lane.h"

namespace netsum::switchml {

[[nodiscard]] std::unique_ptr<protocol::WorkerLane> make_worker_lane(const WorkerConfig& config);

}  // namespace netsum::switchml
