#include "protocol/netreduce/worker_lane.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/netreduce/sealed_hops.h"
#include "wire/counter_values.h"

namespace netsum::netreduce {
namespace {

using protocol::ChunkStall;
using protocol::LaneFailure;
using protocol::LaneTotals;

class Lane final : public protocol::WorkerLane {
 public:
  Lane(const RoceHostConfig& config, const LaneKeys& keys)
      : window_(config.worker.window * config.worker.message_packets), host_(config) {
    if (keys.security == PacketSecurity::none) return;
    const seal::Neighbour accelerator{config.accelerator, keys.up, keys.down};
    hops_.set(all, keys.security, {&accelerator, 1}, {&all, 1});
  }

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    bool taken = false;
    seal::through(hops_, {}, sink, [&](std::span<const RxView>, Sink& out) { taken = host_.submit(operation, now, out); });
    return taken;
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    unbelieved_ += seal::through(hops_, packets, sink,
                                 [&](std::span<const RxView> believed, Sink& out) { host_.on_packets(believed, now, out); });
  }
  void on_timer(Time now, Sink& sink) override {
    seal::through(hops_, {}, sink, [&](std::span<const RxView>, Sink& out) { host_.on_timer(now, out); });
  }
  [[nodiscard]] Time next_timeout() const override { return host_.next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return host_.take_completed(); }
  [[nodiscard]] bool idle() const override { return host_.worker().idle(); }
  [[nodiscard]] bool answers_when_idle() const override { return true; }
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

  [[nodiscard]] LaneTotals totals() const override { return {host_.sending().retransmissions, window_}; }
  // The host's counters have each packet's outcome. What it delivers, its queue pairs count again.
  [[nodiscard]] std::vector<CounterValue> counters() const override {
    std::vector<CounterValue> values = wire::counter_values(host_counters());
    roce::QueuePairCounters pairs = host_.sending();
    add(pairs, host_.receiving());
    for_each_counter(pairs, [&](CounterValue counter) {
      counter.kind = CounterKind::other;
      values.push_back(counter);
    });
    values.push_back({"refused_a_seal", host_.worker().failure() ? 1U : 0U, CounterKind::other});
    return values;
  }
  [[nodiscard]] std::uint64_t received() const override { return outcomes(host_counters()); }

 private:
  // All packets of the lane are of one job.
  static constexpr std::uint64_t all = 0;
  [[nodiscard]] static std::optional<std::uint64_t> any(std::span<const std::byte>) { return all; }

  [[nodiscard]] RoceHostCounters host_counters() const {
    RoceHostCounters counters = host_.counters();
    counters.unbelieved = unbelieved_;
    return counters;
  }

  const std::uint32_t window_;
  RoceHost host_;
  seal::Hops hops_{{.mark = any, .clear = clear_bytes}};
  std::uint64_t unbelieved_ = 0;
};

}  // namespace

std::unique_ptr<protocol::WorkerLane> make_worker_lane(const RoceHostConfig& config, const LaneKeys& keys) {
  return std::make_unique<Lane>(config, keys);
}

}  // namespace netsum::netreduce
