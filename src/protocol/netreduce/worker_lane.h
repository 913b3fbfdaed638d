// NetReduce's end of a lane at a rank without RDMA hardware (runtime/verbs_lane.h has the other).
#pragma once

#include <memory>

#include "protocol/netreduce/roce_host.h"
#include "protocol/worker_lane.h"

namespace netsum::netreduce {

[[nodiscard]] std::unique_ptr<protocol::WorkerLane> make_worker_lane(const RoceHostConfig& config);

}  // namespace netsum::netreduce
