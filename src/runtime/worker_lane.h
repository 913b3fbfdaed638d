// The event loop's view of a worker protocol. One virtual call per batch or per operation, never per packet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/atp/worker.h"
#include "protocol/netreduce/roce_host.h"
#include "protocol/switchml/worker.h"
#include "stream/operation.h"
#include "transport/verbs_ring.h"

namespace netsum::runtime {

// Why a lane cannot go on.
struct LaneFailure {
  enum class Kind : std::uint8_t { mismatch, unknown_job, unsealed } kind;
  std::uint64_t operation = 0;
  std::uint32_t first_rank = 0, second_rank = 0;  // mismatch
  std::string what{};                             // unsealed: in words
};

struct ChunkStall {
  std::uint64_t operation = 0;
  std::uint32_t chunk = 0;
  RankSet missing;
  Time told{};
};

struct LaneTotals {
  std::uint64_t retransmissions = 0;
  std::uint32_t window = 0;  // chunks that may be in flight now
};

class WorkerLane {
 public:
  virtual ~WorkerLane() = default;
  [[nodiscard]] virtual bool submit(const stream::Operation& operation, Time now, Sink& sink) = 0;
  virtual void on_packets(std::span<const RxView> packets, Time now, Sink& sink) = 0;
  virtual void on_timer(Time now, Sink& sink) = 0;
  [[nodiscard]] virtual Time next_timeout() const = 0;
  [[nodiscard]] virtual std::vector<std::uint64_t> take_completed() = 0;
  [[nodiscard]] virtual std::optional<LaneFailure> failure() const = 0;
  [[nodiscard]] virtual std::optional<ChunkStall> oldest_stall() const = 0;
  [[nodiscard]] virtual LaneTotals totals() const = 0;
  // Whether other ranks need this lane's answers while it has nothing in flight.
  [[nodiscard]] virtual bool answers_when_idle() const { return false; }
  // Whether no other rank needs this one for operations that have ended.
  [[nodiscard]] virtual bool drained() const { return true; }
};

[[nodiscard]] std::unique_ptr<WorkerLane> make_worker_lane(const switchml::WorkerConfig& config);
[[nodiscard]] std::unique_ptr<WorkerLane> make_worker_lane(const atp::WorkerConfig& config);
[[nodiscard]] std::unique_ptr<WorkerLane> make_worker_lane(const netreduce::RoceHostConfig& config);
// NetReduce on RDMA hardware. `ring` is connected, serves as the lane's transport, and outlives the lane. The ring provides
// the worker's memory; `config` gives none.
[[nodiscard]] std::unique_ptr<WorkerLane> make_worker_lane(const netreduce::WorkerConfig& config,
                                                           transport::VerbsRing& ring);

}  // namespace netsum::runtime
