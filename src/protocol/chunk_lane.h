// The lane of a worker whose unit is the chunk, in SwitchML and ATP. What is left to the protocol: how long the window is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "protocol/worker_lane.h"
#include "wire/counter_values.h"

namespace netsum::protocol {

template <class Worker>
class ChunkLane : public WorkerLane {
 public:
  template <class Config>
  explicit ChunkLane(const Config& config) : worker_(config) {}

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    return worker_.submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { worker_.on_packets(packets, now, sink); }
  void on_timer(Time now, Sink& sink) override { worker_.on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return worker_.next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return worker_.take_completed(); }
  [[nodiscard]] bool idle() const override { return worker_.idle(); }

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
    return {worker_.counters().retransmissions, window(), worker_.underflow()};
  }
  [[nodiscard]] std::vector<CounterValue> counters() const override { return wire::counter_values(worker_.counters()); }
  [[nodiscard]] std::uint64_t received() const override { return outcomes(worker_.counters()); }

 protected:
  [[nodiscard]] virtual std::uint32_t window() const = 0;
  [[nodiscard]] const Worker& worker() const { return worker_; }
  [[nodiscard]] Worker& worker() { return worker_; }

 private:
  Worker worker_;
};

}  // namespace netsum::protocol
