#include "runtime/worker_lane.h"

namespace netsum::runtime {
namespace {

std::uint32_t window_of(const switchml::Worker&, const switchml::WorkerConfig& config) {
  return config.slots;
}
std::uint32_t window_of(const atp::Worker& worker, const atp::WorkerConfig&) {
  return worker.congestion_window();
}

template <class Worker, class Config>
class Lane final : public WorkerLane {
 public:
  explicit Lane(const Config& config) : config_(config), worker_(config) {}

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    return worker_.submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { worker_.on_packets(packets, now, sink); }
  void on_timer(Time now, Sink& sink) override { worker_.on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return worker_.next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return worker_.take_completed(); }

  [[nodiscard]] std::optional<LaneFailure> failure() const override {
    const auto& failure = worker_.failure();
    if (!failure) return std::nullopt;
    const bool mismatch = failure->kind == std::remove_cvref_t<decltype(*failure)>::Kind::mismatch;
    return LaneFailure{mismatch ? LaneFailure::Kind::mismatch : LaneFailure::Kind::unknown_job,
                       failure->operation,
                       failure->first_rank,
                       failure->second_rank,
                       {}};
  }

  [[nodiscard]] std::optional<ChunkStall> oldest_stall() const override {
    const auto stall = worker_.oldest_stall();
    if (!stall) return std::nullopt;
    ChunkStall out{stall->operation, stall->chunk, {}, stall->told};
    stall->missing.for_each([&](std::uint32_t rank) { out.missing.insert(rank); });
    return out;
  }

  [[nodiscard]] LaneTotals totals() const override {
    return {worker_.counters().retransmissions, window_of(worker_, config_)};
  }

 private:
  Config config_;
  Worker worker_;
};

class RoceLane final : public WorkerLane {
 public:
  explicit RoceLane(const netreduce::RoceHostConfig& config) : config_(config), host_(config) {}

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    return host_.submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { host_.on_packets(packets, now, sink); }
  void on_timer(Time now, Sink& sink) override { host_.on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return host_.next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return host_.take_completed(); }
  [[nodiscard]] bool drained() const override { return host_.drained(); }

  [[nodiscard]] std::optional<LaneFailure> failure() const override {
    const std::string what = host_.failure();
    if (what.empty()) return std::nullopt;
    const auto stall = host_.worker().oldest_stall();
    return LaneFailure{LaneFailure::Kind::unsealed, stall ? stall->operation : 0, 0, 0, what};
  }

  [[nodiscard]] std::optional<ChunkStall> oldest_stall() const override {
    const auto stall = host_.worker().oldest_stall();
    if (!stall) return std::nullopt;
    return ChunkStall{stall->operation, stall->chunk, {}, {}};
  }

  [[nodiscard]] LaneTotals totals() const override {
    return {host_.sending().retransmissions, config_.worker.window * config_.worker.message_packets};
  }

 private:
  netreduce::RoceHostConfig config_;
  netreduce::RoceHost host_;
};

}  // namespace

std::unique_ptr<WorkerLane> make_worker_lane(const switchml::WorkerConfig& config) {
  return std::make_unique<Lane<switchml::Worker, switchml::WorkerConfig>>(config);
}

std::unique_ptr<WorkerLane> make_worker_lane(const atp::WorkerConfig& config) {
  return std::make_unique<Lane<atp::Worker, atp::WorkerConfig>>(config);
}

std::unique_ptr<WorkerLane> make_worker_lane(const netreduce::RoceHostConfig& config) {
  return std::make_unique<RoceLane>(config);
}

}  // namespace netsum::runtime
