// A rank's end of a ring: a connection to the next rank, one from the rank before, and the steps of each all-reduce.
//
// A connection numbers its packets, and has a window of them in flight. What has come is acknowledged every eight packets,
// and at once where a packet asks for it (the last for now), was repeated, or is behind a gap, with a map of what is behind
// it. The sender repeats what three later packets overtook, and the newest where it hears nothing (stream/tail_probe.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/counter_list.h"
#include "base/endpoint.h"
#include "protocol/worker_lane.h"
#include "stream/operation.h"
#include "stream/retransmission_timer.h"
#include "stream/tail_probe.h"

namespace netsum::sim {

struct RingConfig {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t packet_elements = 256;
  std::uint32_t window = 64;          // packets
  std::uint32_t lane = 0, lanes = 1;  // each has its share of a tensor
  Endpoint next, previous;
};

struct RingLaneCounters {
  std::uint64_t packets_sent = 0, retransmissions = 0, acknowledgements_sent = 0;
  std::uint64_t values = 0, acknowledgements = 0, duplicates = 0, foreign = 0;

  static constexpr auto fields() {
    using enum CounterKind;
    using C = RingLaneCounters;
    return std::to_array<CounterField<C>>({{"packets_sent", &C::packets_sent, other},
                                           {"retransmissions", &C::retransmissions, other},
                                           {"acknowledgements_sent", &C::acknowledgements_sent, other},
                                           {"values", &C::values, outcome},
                                           {"acknowledgements", &C::acknowledgements, outcome},
                                           {"duplicates", &C::duplicates, outcome},
                                           {"foreign", &C::foreign, outcome}});
  }
};

class RingLane final : public protocol::WorkerLane {
 public:
  static constexpr std::size_t header_bytes = 40;

  explicit RingLane(const RingConfig& config) : config_(config) {}

  [[nodiscard]] bool submit(const stream::Operation& operation, Time now, Sink& sink) override;
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override;
  void on_timer(Time now, Sink& sink) override;
  [[nodiscard]] Time next_timeout() const override;
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return std::exchange(completed_, {}); }
  [[nodiscard]] std::optional<protocol::LaneFailure> failure() const override { return std::nullopt; }
  [[nodiscard]] bool idle() const override { return active_.empty(); }
  [[nodiscard]] std::optional<protocol::ChunkStall> oldest_stall() const override;
  [[nodiscard]] protocol::LaneTotals totals() const override { return {counters_.retransmissions, config_.window}; }
  [[nodiscard]] std::vector<CounterValue> counters() const override;
  [[nodiscard]] std::uint64_t received() const override { return outcomes(counters_); }
  [[nodiscard]] bool answers_when_idle() const override { return true; }
  [[nodiscard]] bool drained() const override { return in_flight_.empty() && queue_.empty(); }

 private:
  struct Header {
    bool acknowledges = false, asks = false;
    std::uint64_t sequence = 0;   // acknowledgement: the first one that is missing
    std::uint64_t operation = 0;  // acknowledgement: what has come behind it, as bits
    std::uint32_t step = 0, packet = 0;
  };
  struct Piece {  // of a tensor, that a packet holds
    std::uint64_t operation = 0;
    std::uint32_t step = 0, packet = 0;
  };
  struct Sent {
    std::vector<std::byte> bytes;
    Time at{};
    std::uint32_t transmissions = 0;
    bool there = false;
  };
  struct Active {
    stream::Operation operation;
    std::uint64_t to_come = 0, to_send = 0;  // packets
  };

  [[nodiscard]] std::uint32_t steps() const { return 2 * (config_.world_size - 1); }
  [[nodiscard]] std::span<float> values(const Active& active, const Piece& piece, std::uint32_t of_rank) const;
  [[nodiscard]] std::uint32_t packets_in(const stream::Operation& operation, std::uint32_t step,
                                         std::uint32_t of_rank) const;
  [[nodiscard]] std::span<float> segment(const stream::Operation& operation, std::uint32_t step,
                                         std::uint32_t of_rank) const;
  void take(const Piece& piece, std::span<const std::byte> content);
  void finish(std::uint64_t operation);
  void advance(Time now, Sink& sink);
  void send(std::uint64_t sequence, bool asks, Time now, Sink& sink);
  void on_values(const Header& header, std::span<const std::byte> content, Sink& sink);
  void on_acknowledgement(const Header& header, Time now, Sink& sink);
  void acknowledge(Sink& sink);
  void write(const Header& header, std::span<std::byte> to) const;
  [[nodiscard]] std::optional<Header> read(std::span<const std::byte> bytes) const;

  const RingConfig config_;
  std::map<std::uint64_t, Active> active_;
  std::uint64_t submitted_ = 0;                                 // operations
  std::deque<std::pair<Piece, std::vector<std::byte>>> early_;  // of operations that this rank has not begun
  std::map<std::uint64_t, std::deque<Piece>> queue_;            // to be sent, by operation; none is empty
  std::deque<Sent> in_flight_;                                  // from sequence number base_ on
  std::uint64_t base_ = 0, expected_ = 0;                       // expected_: of the rank before
  std::deque<bool> behind_;                                     // what has come, from expected_ on
  std::uint32_t unanswered_ = 0;                                // packets
  stream::RetransmissionTimer timer_{std::chrono::milliseconds(20), std::chrono::milliseconds(1),
                                     std::chrono::milliseconds(250)};
  stream::TailProbe tail_{1};
  std::vector<std::uint64_t> completed_;
  RingLaneCounters counters_;
};

}  // namespace netsum::sim
