// An engine carries out a communicator's operations, over packet lanes or in shared memory. This is the façade's and the
// monitor's view.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "netsum/error.h"
#include "protocol/worker_lane.h"
#include "runtime/arenas.h"
#include "stream/operation.h"
#include "transport/datagram/transport.h"

namespace netsum::runtime {

// The longest sleep of a caller that has something to do while it waits (PendingOperation::meanwhile).
constexpr Duration meanwhile_every = std::chrono::microseconds(100);

// One pending operation, shared by its caller and the lanes.
class PendingOperation {
 public:
  PendingOperation(const stream::Operation& what, Time from, Time until)
      : operation(what), issued(from), deadline(until), sent(what) {}

  const stream::Operation operation;
  const Time issued, deadline;

  // For the engine: what the lanes carry out, and how many of them have not finished.
  stream::Operation sent;
  bool called = true;          // false: a replay for other ranks alone
  bool waits_for_all = false;  // CallOptions
  RankSet summed{};            // once it has ended: the ranks whose values the result has in it; empty: all
  std::atomic<std::uint32_t> lanes_remaining = 0;
  // Own the tensors' memory if that is from Communicator::allocate(), while the tensors are lent: input and output.
  std::array<std::shared_ptr<const void>, 2> memory;
  // Shared memory: where the other ranks see the tensor, if they do.
  Arenas::Place place;
  // What a thread in wait() or Engine::run() does again and again; empty: nothing.
  std::function<void()> meanwhile;

  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  void wait();
  [[nodiscard]] bool wait_until(Time time);      // whether it has ended
  void end(std::shared_ptr<const Error> error);  // null: success
  // Once it has ended: on the thread that ends it, or now on this one.
  void then(std::function<void()> what);
  [[nodiscard]] std::shared_ptr<const Error> error() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> done_ = false;
  std::shared_ptr<const Error> error_;
  std::vector<std::function<void()>> then_;
};

struct LaneStall {
  std::uint32_t lane;
  protocol::ChunkStall stall;
};

class Engine {
 public:
  struct Totals {
    protocol::LaneTotals protocol;
    transport::Counters transport;
    std::uint64_t bytes_copied = 0;      // in shared memory, from and to tensors
    std::uint64_t busy_nanoseconds = 0;  // with packets in hand or to send, of the threads that serve lanes
  };

  virtual ~Engine() = default;

  // In order of operation numbers, from one thread at a time. Throws the engine's error if the engine has failed.
  virtual void submit(const std::shared_ptr<PendingOperation>& operation) = 0;

  // As submit(), but on the caller's thread, which saves the hand-over: for small operations. False: not possible now, and
  // nothing was done.
  [[nodiscard]] virtual bool run(const std::shared_ptr<PendingOperation>& operation) = 0;

  // Ends all pending and later operations with `error`; only the first call counts. Returns when no thread of the engine
  // touches a caller's memory any more. Not from an engine's thread.
  virtual void fail(const Error& error) = 0;

  // Waits until no other rank needs this one for operations that have ended, or until enough() is true. No operation is
  // pending.
  virtual void drain(const std::function<bool()>& enough) = 0;

  [[nodiscard]] virtual std::shared_ptr<const Error> failure() const = 0;
  [[nodiscard]] virtual std::shared_ptr<PendingOperation> most_urgent() const = 0;  // the next deadline's; null: none
  [[nodiscard]] virtual std::shared_ptr<PendingOperation> find(std::uint64_t number) const = 0;  // null: not pending
  [[nodiscard]] virtual std::optional<LaneStall> oldest_stall() = 0;  // what the oldest chunk in flight waits for
  [[nodiscard]] virtual std::uint64_t operations_completed() const = 0;
  [[nodiscard]] virtual Totals totals() = 0;
};

}  // namespace netsum::runtime
