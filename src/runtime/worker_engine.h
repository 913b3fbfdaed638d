// One communicator's lanes of the worker protocol, on threads that the process's communicators share: operations in,
// completions out.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "protocol/worker_lane.h"
#include "runtime/busy_poll.h"
#include "runtime/engine.h"
#include "runtime/thread.h"
#include "stream/operation.h"
#include "stream/operation_log.h"
#include "transport/datagram/transport.h"

namespace netsum::runtime {

struct LaneSetup {
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<protocol::WorkerLane> worker;
};

class WorkerEngine final : public Engine {
 public:
  // `on_failure` is called from an I/O thread when a lane cannot go on; the owner then calls fail() or suspend(). With a
  // log, already resumed, operations can go on over other lanes. With `late_ranks` an operation that waits for all ranks,
  // and those after it, are held back: these lanes do without some.
  WorkerEngine(std::vector<LaneSetup> lanes, std::uint32_t threads, const ThreadOptions& thread_options,
               std::function<void(std::uint32_t lane, const protocol::LaneFailure&)> on_failure,
               std::optional<stream::OperationLog> log = {}, bool late_ranks = false);
  ~WorkerEngine() override;  // ends pending operations with `closed`
  WorkerEngine(const WorkerEngine&) = delete;
  WorkerEngine& operator=(const WorkerEngine&) = delete;

  void submit(const std::shared_ptr<PendingOperation>& operation) override;  // to every lane

  // Not possible while others are pending or may have to be replayed.
  [[nodiscard]] bool run(const std::shared_ptr<PendingOperation>& operation) override;
  void fail(const Error& error) override;
  void drain(const std::function<bool()>& enough) override;

  // With a log only: ends the lanes but not the operations, which resume() sends again over new lanes. Operations submitted
  // in between wait. Not from an I/O thread.
  void suspend();
  [[nodiscard]] stream::Progress progress() const;  // once suspended
  // The first call under way and since when; or the number of the next one, and when the last one ended.
  struct Pace {
    std::optional<Time> called;
    std::uint64_t next = 0;
    Time free_since{};
  };
  [[nodiscard]] Pace pace() const;
  [[nodiscard]] std::uint64_t behind() const;  // as stream::OperationLog's
  void resume(std::vector<LaneSetup> lanes, const stream::Resumption& resumption, bool late_ranks = false);

  [[nodiscard]] std::shared_ptr<const Error> failure() const override;
  [[nodiscard]] std::shared_ptr<PendingOperation> most_urgent() const override;
  [[nodiscard]] std::shared_ptr<PendingOperation> find(std::uint64_t number) const override;
  [[nodiscard]] std::optional<LaneStall> oldest_stall() override;
  [[nodiscard]] std::uint64_t operations_completed() const override;
  [[nodiscard]] Totals totals() override;

 private:
  class Share;
  class Borrowed;

  void start(std::vector<LaneSetup> lanes);
  void lane_done(std::uint64_t number);
  void hand_over(const std::shared_ptr<PendingOperation>& operation, bool has_result = false);

  const std::uint32_t threads_wanted_;
  const ThreadOptions thread_options_;
  std::function<void(std::uint32_t, const protocol::LaneFailure&)> on_failure_;

  mutable std::mutex mutex_;  // guards the members up to the empty line; the lanes' threads take it
  std::map<std::uint64_t, std::shared_ptr<PendingOperation>> under_way_;
  std::optional<stream::OperationLog> log_;
  std::shared_ptr<const Error> failure_;
  std::uint64_t completed_ = 0;
  Time free_since_ = now();  // of calls, with a log

  std::mutex shares_mutex_;  // guards the members below; taken before mutex_, never by an I/O thread
  bool suspended_ = false, late_ranks_ = false, holding_ = false;
  bool lendable_ = false;  // a caller may serve the lanes: they are idle between operations
  std::uint32_t lanes_ = 0;
  Totals past_;  // of lanes that have ended
  std::vector<std::unique_ptr<Share>> shares_;

  BusyPoll caller_poll_{thread_options_.busy_poll};  // of run()
  std::vector<pollfd> caller_descriptors_;
};

}  // namespace netsum::runtime
