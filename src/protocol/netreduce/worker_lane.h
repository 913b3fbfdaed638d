// NetReduce's end of a lane at a rank without RDMA hardware (runtime/verbs_lane.h has the other).
#pragma once

#include <memory>

#include "netsum/types.h"
#include "protocol/netreduce/roce_host.h"
#include "protocol/worker_lane.h"
#include "seal/packet_key.h"

namespace netsum::netreduce {

// What protects a rank's packets to and from its accelerator.
struct LaneKeys {
  PacketSecurity security = PacketSecurity::none;
  seal::PacketKey up{}, down{};
};
[[nodiscard]] std::unique_ptr<protocol::WorkerLane> make_worker_lane(const RoceHostConfig& config,
                                                                     const LaneKeys& keys = {});

}  // namespace netsum::netreduce
