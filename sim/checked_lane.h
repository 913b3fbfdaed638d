// A worker's lane, the product's own, and what must hold of it after every step, whatever the protocol.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "protocol/worker_lane.h"
#include "sim/events.h"
#include "sim/faults.h"

namespace netsum::sim {

class CheckedLane {
 public:
  // `window`: the most packets in flight that the job's admission allows.
  CheckedLane(std::unique_ptr<protocol::WorkerLane> lane, std::uint64_t window) : lane_(std::move(lane)), window_(window) {}

  [[nodiscard]] bool submit(const stream::Operation& operation, Time now, Sink& sink) {
    return lane_->submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
    received_ += packets.size();
    lane_->on_packets(packets, now, sink);
  }
  void on_timer(Time now, Sink& sink) { lane_->on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const { return lane_->next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() { return lane_->take_completed(); }
  [[nodiscard]] std::optional<protocol::LaneFailure> failure() const { return lane_->failure(); }
  [[nodiscard]] std::optional<protocol::ChunkStall> oldest_stall() const { return lane_->oldest_stall(); }
  [[nodiscard]] bool drained() const { return lane_->drained(); }
  [[nodiscard]] std::vector<CounterValue> counters() const { return lane_->counters(); }
  [[nodiscard]] protocol::LaneTotals totals() const { return lane_->totals(); }

  void check() const {
    if (lane_->received() != received_) throw Violation("a worker's counters do not add up to what it received");
    if (lane_->idle() && lane_->oldest_stall()) throw Violation("a worker without operations has a chunk in flight");
    const std::uint32_t now = lane_->totals().window;
    if (now == 0 || now > window_) throw Violation("a worker's window is empty, or longer than the job's");
  }

  // Queue pairs of ranks of one job do not refuse each other's packets, and their host keeps strangers' from them. Of those
  // that keep what comes behind a gap, hardly any packet comes too far behind it. Without seals nothing is without its own.
  // Only over UC results have several packets.
  void count_events(Tally& tally, bool sealed) const {
    sim::count_events(tally, "worker_", lane_->counters(),
                      {"refused", "foreign_to_pair", "out_of_order", "message_packets", "gaps", sealed ? "" : "unbelieved"});
  }

 private:
  std::unique_ptr<protocol::WorkerLane> lane_;
  std::uint64_t window_;
  std::uint64_t received_ = 0;
};

}  // namespace netsum::sim
