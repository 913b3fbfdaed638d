// One rank's end of one lane: a window of chunks, each sent to the server until its sum comes back.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/counter_list.h"
#include "base/endpoint.h"
#include "protocol/baseline/packet.h"
#include "protocol/worker_lane.h"
#include "session/registry.h"
#include "stream/operation.h"
#include "stream/retransmission_timer.h"

namespace netsum::baseline {

struct WorkerConfig {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t rank_epoch = 0;
  std::uint32_t packet_elements = 256;
  std::uint32_t window = 64;          // chunks in flight
  std::uint32_t lane = 0, lanes = 1;  // over all servers; chunk i of an operation is lane i mod lanes'
  Endpoint server;
  Duration patience = std::chrono::seconds(1);  // once the server has said that it waits for others
};

[[nodiscard]] WorkerConfig worker_config(const session::Admission& admission, std::uint32_t rank, std::uint32_t lane,
                                         std::uint32_t lanes, const Endpoint& server);

struct WorkerCounters {
  std::uint64_t results = 0, waiting = 0, mismatch = 0, unknown_job = 0;
  std::uint64_t stale = 0;    // of a chunk that is not in flight
  std::uint64_t foreign = 0;  // not of this server, job or rank
  std::uint64_t malformed = 0;
  std::uint64_t retransmissions = 0;

  static constexpr auto fields() {
    using enum CounterKind;
    return std::to_array<CounterField<WorkerCounters>>({{"results", &WorkerCounters::results, outcome},
                                                        {"waiting", &WorkerCounters::waiting, outcome},
                                                        {"mismatch", &WorkerCounters::mismatch, outcome},
                                                        {"unknown_job", &WorkerCounters::unknown_job, outcome},
                                                        {"stale", &WorkerCounters::stale, outcome},
                                                        {"foreign", &WorkerCounters::foreign, outcome},
                                                        {"malformed_packets", &WorkerCounters::malformed, outcome},
                                                        {"retransmissions", &WorkerCounters::retransmissions, other}});
  }
};

class Worker final : public protocol::WorkerLane {
 public:
  explicit Worker(const WorkerConfig& config) : config_(config) {}

  [[nodiscard]] bool submit(const stream::Operation& operation, Time now, Sink& sink) override;
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override;
  void on_timer(Time now, Sink& sink) override;
  [[nodiscard]] Time next_timeout() const override;
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override;
  [[nodiscard]] std::optional<protocol::LaneFailure> failure() const override { return failure_; }
  [[nodiscard]] bool idle() const override { return active_.empty(); }
  [[nodiscard]] std::optional<protocol::ChunkStall> oldest_stall() const override;
  [[nodiscard]] protocol::LaneTotals totals() const override { return {counters_.retransmissions, config_.window}; }
  [[nodiscard]] std::vector<CounterValue> counters() const override;
  [[nodiscard]] std::uint64_t received() const override { return outcomes(counters_); }

 private:
  struct Active {
    stream::Operation operation;
    std::uint32_t signature = 0;
    std::uint64_t chunks = 0;  // on this lane
    std::uint64_t sent = 0, done = 0;
  };
  struct Chunk {
    Active* active = nullptr;  // null: its sum has come
    std::uint64_t offset = 0;  // in the tensor
    std::uint32_t elements = 0, transmissions = 0;
    Time first_sent{}, last_sent{}, deadline{};
    RankSet missing{};
    Time told{};
  };

  void advance(Time now, Sink& sink);
  void send(Chunk& chunk, std::uint64_t sequence, Time now, Sink& sink);
  void encode(const stream::Operation& operation, const Chunk& chunk, std::byte* to) const;
  void decode(const stream::Operation& operation, const Chunk& chunk, std::span<const std::byte> values) const;
  void on_packet(const RxView& packet, Time now);

  const WorkerConfig config_;
  std::deque<Active> active_;    // not complete, oldest first; pointers stay valid
  std::deque<Chunk> in_flight_;  // from sequence number base_ on
  std::uint64_t base_ = 0;
  stream::RetransmissionTimer timer_{std::chrono::milliseconds(20), std::chrono::milliseconds(1),
                                     std::chrono::milliseconds(250)};
  std::vector<std::uint64_t> completed_;
  std::optional<protocol::LaneFailure> failure_;
  WorkerCounters counters_;
};

}  // namespace netsum::baseline
