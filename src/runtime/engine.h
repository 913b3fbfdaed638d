// What carries out a communicator's operations, as the façade and its monitor see it: lanes of packets, or shared memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "netsum/error.h"
#include "runtime/arenas.h"
#include "runtime/worker_lane.h"
#include "stream/operation.h"
#include "transport/transport.h"

namespace netsum::runtime {

// One operation under way, shared by its caller and the lanes.
class PendingOperation {
 public:
  PendingOperation(const stream::Operation& what, Time from, Time until)
      : operation(what), issued(from), deadline(until), sent(what) {}

  const stream::Operation operation;
  const Time issued, deadline;

  // The engine's: what the lanes are given for it, and how many of them are not done with that.
  stream::Operation sent;
  bool called = true;  // false: a replay for other ranks alone
  std::atomic<std::uint32_t> lanes_remaining = 0;
  // Its tensor's, if that is from Communicator::allocate(): stays as long as it is lent.
  std::shared_ptr<const void> memory;
  // In shared memory: where the others see its tensor, if they do.
  Arenas::Place place;

  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  void wait();                                   // until it ends
  void end(std::shared_ptr<const Error> error);  // null: in a result
  [[nodiscard]] std::shared_ptr<const Error> error() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> done_ = false;
  std::shared_ptr<const Error> error_;
};

struct LaneStall {
  std::uint32_t lane;
  ChunkStall stall;
};

class Engine {
 public:
  struct Totals {
    LaneTotals protocol;
    transport::Counters transport;
    std::uint64_t bytes_copied = 0;  // in shared memory, from and to tensors
  };

  virtual ~Engine() = default;

  // Operations are submitted in order of number, from one thread at a time. Throws the engine's error if it has failed.
  virtual void submit(const std::shared_ptr<PendingOperation>& operation) = 0;

  // submit(), and carries it out on the caller's own thread, which costs no hand-over: for small operations. False: not
  // possible now, and nothing was done.
  [[nodiscard]] virtual bool run(const std::shared_ptr<PendingOperation>& operation) = 0;

  // Ends every operation under way, and every later one, with `error`; the first call counts. Returns when no thread of the
  // engine touches a caller's memory any more. Not from one of these.
  virtual void fail(const Error& error) = 0;

  // Waits until nobody needs this rank any more for the operations that have ended, or until `enough`. No operation is under
  // way.
  virtual void drain(const std::function<bool()>& enough) = 0;

  [[nodiscard]] virtual std::shared_ptr<const Error> failure() const = 0;
  [[nodiscard]] virtual std::shared_ptr<PendingOperation> most_urgent() const = 0;  // the next deadline's; null if none
  [[nodiscard]] virtual std::shared_ptr<PendingOperation> find(std::uint64_t number) const = 0;  // null: not under way
  [[nodiscard]] virtual std::optional<LaneStall> oldest_stall() = 0;  // what the oldest chunk in flight waits for
  [[nodiscard]] virtual std::uint64_t operations_completed() const = 0;
  [[nodiscard]] virtual Totals totals() = 0;
};

}  // namespace netsum::runtime
