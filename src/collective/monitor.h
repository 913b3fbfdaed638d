// A rank's own native thread, which keeps it alive and its waits bounded: heartbeats to every aggregator, deadlines of
// operations. session/supervisor.h interprets the answers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collective/join.h"
#include "runtime/worker_engine.h"
#include "session/supervisor.h"

namespace netsum::collective {

class Monitor {
 public:
  Monitor(const Options& options, Joined& joined);  // takes its memberships
  ~Monitor();                                       // stop() if that was not called
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // `recovering`: the same engine, if its job recovers.
  void start(runtime::Engine& engine, runtime::WorkerEngine* recovering);
  void stop();   // ends the thread
  void leave();  // tells every aggregator, once; after stop()

  // From an I/O thread: a lane cannot go on.
  void lane_failed(std::uint32_t lane, const runtime::LaneFailure& failure);
  [[nodiscard]] bool has_left(std::uint32_t rank);  // in good order, as last heard
  void watch(Time deadline);                        // an operation with this deadline was submitted
  // Another thread failed the engine: tells the other ranks now, not when they miss this one.
  void engine_failed();

 private:
  void loop();
  void attend(Joined& joined);
  // For a job that recovers: waits for all ranks to join again, and goes on. Otherwise returns the error.
  [[nodiscard]] std::optional<Error> recover(const Error& cause);
  [[nodiscard]] std::optional<Error> beat(std::size_t site);
  [[nodiscard]] std::optional<session::Stall> oldest_stall();
  [[nodiscard]] std::optional<Error> explain(std::uint32_t lane, const runtime::LaneFailure& failure);
  [[nodiscard]] std::optional<Error> check_deadlines();

  const Options options_;
  std::optional<session::Supervisor> supervisor_;  // the thread's only, like the next three
  std::vector<Membership> memberships_;
  std::vector<std::size_t> aggregator_of_lane_;
  std::uint32_t packet_elements_ = 0;
  runtime::Engine* engine_ = nullptr;
  runtime::WorkerEngine* recovering_ = nullptr;
  bool goodbye_ = false;

  std::mutex mutex_;  // guards the four values below
  std::condition_variable changed_;
  bool stopping_ = false;
  std::optional<std::pair<std::uint32_t, runtime::LaneFailure>> lane_failure_;
  Time next_deadline_ = never;
  RankSet left_;

  std::thread thread_;
};

}  // namespace netsum::collective
