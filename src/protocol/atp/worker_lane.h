// ATP's end of a lane at a rank.
#pragma once

#include <memory>
#include <vector>

#include "protocol/atp/worker.h"
#include "protocol/worker_lane.h"
#include "seal/hops.h"

namespace netsum::atp {

// The keys between a rank and its neighbours, on a lane of a job whose packets are sealed.
struct LaneKeys {
  PacketSecurity security = PacketSecurity::none;
  std::vector<seal::Neighbour> neighbours{};
};
[[nodiscard]] std::unique_ptr<protocol::WorkerLane> make_worker_lane(const WorkerConfig& config, const LaneKeys& keys = {});

}  // namespace netsum::atp
