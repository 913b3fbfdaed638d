#include "protocol/switchml/worker_lane.h"

#include "protocol/chunk_lane.h"

namespace netsum::switchml {
namespace {

class Lane final : public protocol::ChunkLane<Worker> {
 public:
  explicit Lane(const WorkerConfig& config) : ChunkLane(config), slots_(config.slots) {}

 private:
  [[nodiscard]] std::uint32_t window() const override { return slots_; }

  const std::uint32_t slots_;
};

}  // namespace

std::unique_ptr<protocol::WorkerLane> make_worker_lane(const WorkerConfig& config) {
  return std::make_unique<Lane>(config);
}

}  // namespace netsum::switchml
