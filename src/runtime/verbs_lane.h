// NetReduce's end of a lane at a rank with RDMA hardware: the only lane that needs a device.
#pragma once

#include <memory>

#include "protocol/netreduce/worker.h"
#include "protocol/worker_lane.h"
#include "transport/rdma/verbs_ring.h"

namespace netsum::runtime {

// `ring` is connected, serves as the lane's transport, and outlives the lane. The ring provides the worker's memory;
// `config` gives none.
[[nodiscard]] std::unique_ptr<protocol::WorkerLane> make_worker_lane(const netreduce::WorkerConfig& config,
                                                                     transport::VerbsRing& ring);

}  // namespace netsum::runtime
