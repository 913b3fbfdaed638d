// ATP's end of a lane at a rank.
#pragma once

#include <memory>

#include "protocol/atp/worker.h"
#include "protocol/worker_lane.h"

namespace netsum::atp {

[[nodiscard]] std::unique_ptr<protocol::WorkerLane> make_worker_lane(const WorkerConfig& config);

}  // namespace netsum::atp
