// The I/O threads of one communicator: lanes of the worker protocol, operations in, completions out.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "runtime/busy_poll.h"
#include "runtime/thread.h"
#include "runtime/worker_lane.h"
#include "stream/operation.h"
#include "stream/operation_log.h"
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

  [[nodiscard]] bool done() const;
  void wait();                                   // until it ends
  void end(std::shared_ptr<const Error> error);  // null: in a result
  [[nodiscard]] std::shared_ptr<const Error> error() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::shared_ptr<const Error> error_;
};

struct LaneSetup {
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<WorkerLane> worker;
};

struct LaneStall {
  std::uint32_t lane;
  ChunkStall stall;
};

class WorkerEngine {
 public:
  // `on_failure` (from an I/O thread) learns of a lane that cannot go on; fail() or suspend() is the expected answer. With a
  // log, resumed already, operations can go on over other lanes.
  WorkerEngine(std::vector<LaneSetup> lanes, std::uint32_t threads, const ThreadOptions& thread_options,
               std::function<void(std::uint32_t lane, const LaneFailure&)> on_failure,
               std::optional<stream::OperationLog> log = {});
  ~WorkerEngine();  // ends what is under way with `closed`
  WorkerEngine(const WorkerEngine&) = delete;
  WorkerEngine& operator=(const WorkerEngine&) = delete;

  // Hands the operation to every lane. Operations are submitted in order of number, from one thread at a time.
  // Throws the engine's error if it has failed.
  void submit(const std::shared_ptr<PendingOperation>& operation);

  // submit(), and carries it out on the caller's own thread, which costs no hand-over: for small operations. False: not
  // possible now, as others are under way or may have to be replayed, and nothing was done.
  [[nodiscard]] bool run(const std::shared_ptr<PendingOperation>& operation);

  // Ends every operation under way, and every later one, with `error`; the first call counts. Returns when no lane
  // touches a caller's memory any more. Not from an I/O thread.
  void fail(const Error& error);

  // Waits until nobody needs this rank any more for the operations that have ended, or until `enough`. No operation is under
  // way.
  void drain(const std::function<bool()>& enough);

  // Of an engine with a log: ends the lanes, not the operations, which resume() sends anew over others. In between,
  // operations may be submitted, and wait. Neither from an I/O thread.
  void suspend();
  [[nodiscard]] stream::Progress progress() const;  // once suspended
  void resume(std::vector<LaneSetup> lanes, const stream::Resumption& resumption);

  [[nodiscard]] std::shared_ptr<const Error> failure() const;
  [[nodiscard]] std::shared_ptr<PendingOperation> most_urgent() const;  // the one whose deadline is next; null if none
  [[nodiscard]] std::shared_ptr<PendingOperation> find(std::uint64_t number) const;  // null if not under way
  [[nodiscard]] std::optional<LaneStall> oldest_stall();  // what the oldest chunk in flight waits for
  [[nodiscard]] std::uint64_t operations_completed() const;

  struct Totals {
    LaneTotals protocol;
    transport::Counters transport;
  };
  [[nodiscard]] Totals totals();

 private:
  class IoThread;
  class Borrowed;

  void start(std::vector<LaneSetup> lanes);
  static void wait(std::vector<pollfd>& descriptors, Time next);
  void lane_done(std::uint64_t number);

  const std::uint32_t threads_wanted_;
  const ThreadOptions thread_options_;
  std::function<void(std::uint32_t, const LaneFailure&)> on_failure_;

  mutable std::mutex mutex_;  // of those up to the empty line; I/O threads take it
  std::map<std::uint64_t, std::shared_ptr<PendingOperation>> under_way_;
  std::optional<stream::OperationLog> log_;
  std::shared_ptr<const Error> failure_;
  std::uint64_t completed_ = 0;

  std::mutex threads_mutex_;  // of those below; never taken by an I/O thread, and before mutex_
  bool suspended_ = false;
  bool lendable_ = false;  // a caller may serve the lanes: they have nothing to do between operations
  std::uint32_t lanes_ = 0;
  Totals past_;  // of lanes that have ended
  std::vector<std::unique_ptr<IoThread>> threads_;

  BusyPoll caller_poll_{thread_options_.busy_poll};  // of run()
  std::vector<pollfd> caller_descriptors_;
};

}  // namespace netsum::runtime
