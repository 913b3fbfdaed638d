// A rank's end of one lane, of any protocol: what a worker engine drives on threads, and the simulator under a virtual
// clock. One virtual call per batch or per operation, never per packet.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "stream/operation.h"
#include "stream/underflow.h"

namespace netsum::protocol {

// Why a lane cannot go on.
struct LaneFailure {
  enum class Kind : std::uint8_t { mismatch, unknown_job, unsealed, device, used_up, changed_sum } kind;
  std::uint64_t operation = 0;
  std::uint32_t first_rank = 0, second_rank = 0;  // mismatch
  std::string what{};                             // unsealed, device, used_up: in words
};

// The oldest chunk in flight.
struct ChunkStall {
  std::uint64_t operation = 0;
  std::uint32_t chunk = 0;
  RankSet missing;  // as the aggregator last said; empty if it has not answered, or cannot say
  Time told{};
};

struct LaneTotals {
  std::uint64_t retransmissions = 0;
  std::uint32_t window = 0;  // packets that may be in flight now
  stream::Underflow underflow{};
};

class WorkerLane {
 public:
  virtual ~WorkerLane() = default;
  // Takes the next operation, in order of number, and sends what the window allows. False: too many are pending.
  [[nodiscard]] virtual bool submit(const stream::Operation& operation, Time now, Sink& sink) = 0;
  virtual void on_packets(std::span<const RxView> packets, Time now, Sink& sink) = 0;
  virtual void on_timer(Time now, Sink& sink) = 0;
  [[nodiscard]] virtual Time next_timeout() const = 0;
  [[nodiscard]] virtual std::vector<std::uint64_t> take_completed() = 0;
  [[nodiscard]] virtual std::optional<LaneFailure> failure() const = 0;
  [[nodiscard]] virtual bool idle() const = 0;  // no operation pending
  [[nodiscard]] virtual std::optional<ChunkStall> oldest_stall() const = 0;
  [[nodiscard]] virtual LaneTotals totals() const = 0;
  // Empty: a device counts.
  [[nodiscard]] virtual std::vector<CounterValue> counters() const = 0;
  // The number of packets received, by their outcomes.
  [[nodiscard]] virtual std::uint64_t received() const = 0;
  // Whether other ranks need this lane's answers while it has nothing in flight.
  [[nodiscard]] virtual bool answers_when_idle() const { return false; }
  // Whether no other rank needs this one for operations that have ended.
  [[nodiscard]] virtual bool drained() const { return true; }
};

}  // namespace netsum::protocol
