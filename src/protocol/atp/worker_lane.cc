#include "protocol/atp/worker_lane.h"

#include "protocol/chunk_lane.h"

namespace netsum::atp {
namespace {

class Lane final : public protocol::ChunkLane<Worker> {
 public:
  using ChunkLane::ChunkLane;

 private:
  [[nodiscard]] std::uint32_t window() const override { return worker().congestion_window(); }
};

}  // namespace

std::unique_ptr<protocol::WorkerLane> make_worker_lane(const WorkerConfig& config) {
  return std::make_unique<Lane>(config);
}

}  // namespace netsum::atp
