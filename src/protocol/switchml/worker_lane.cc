#include "protocol/switchml/worker_lane.h"

#include "protocol/chunk_lane.h"

namespace netsum::switchml {
namespace {

class Lane final : public protocol::ChunkLane<Worker> {
 public:
  explicit Lane(const WorkerConfig& config) : ChunkLane(config), slots_(config.slots) {}

  [[nodiscard]] std::optional<protocol::LaneFailure> failure() const override {
    const auto& failure = worker().failure();
    if (failure && failure->kind == WorkerFailure::Kind::changed_sum) {
      return protocol::LaneFailure{protocol::LaneFailure::Kind::changed_sum, failure->operation, 0, 0, {}};
    }
    if (!failure || failure->kind != WorkerFailure::Kind::rounds_used_up) return ChunkLane::failure();
    return protocol::LaneFailure{protocol::LaneFailure::Kind::used_up, failure->operation, 0, 0,
                                 "the round numbers of a slot are used up: the job must join again for a new epoch"};
  }

 private:
  [[nodiscard]] std::uint32_t window() const override { return slots_; }

  const std::uint32_t slots_;
};

}  // namespace

std::unique_ptr<protocol::WorkerLane> make_worker_lane(const WorkerConfig& config) {
  return std::make_unique<Lane>(config);
}

}  // namespace netsum::switchml
