// Drives a rank's session machine (session/rank.h): on the caller's thread until the rank has joined, then on a thread that
// all communicators of the process share, which keeps the rank alive and its waits bounded. Calls to aggregators that may
// take long run beside it.
#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "collective/join.h"
#include "runtime/progress_thread.h"
#include "runtime/thread.h"
#include "runtime/worker_engine.h"
#include "session/rank.h"

namespace netsum::collective {

class Monitor final : session::Rank::Operations, runtime::ProgressThread::Participant {
 public:
  Monitor(const Options& options, MakeRank make);  // throws Error: bad_argument
  ~Monitor();                                      // stop() if that was not called
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // Once, before start(). Throws Error: unreachable, refused, deadline.
  [[nodiscard]] Joined join();
  // `recovering`: the same engine, if its job recovers.
  void start(runtime::Engine& engine, runtime::WorkerEngine* recovering);
  void stop();                   // on return the thread does not touch it
  void leave(const Error* why);  // tells every aggregator; after stop(). Null: in good order

  // From an I/O thread: a lane cannot go on.
  void lane_failed(std::uint32_t lane, const protocol::LaneFailure& failure);
  [[nodiscard]] bool successor_has_left();  // RankTraits::successor; in good order, as last heard
  [[nodiscard]] bool knocked();             // new processes wait to be let in
  void let_in();                            // session::Rank::let_in(); on return the lanes have ended, if it did
  void watch(Time deadline);                // an operation with this deadline was submitted
  [[nodiscard]] std::uint64_t behind() const { return recovering_ == nullptr ? 0 : recovering_->behind(); }
  // Another thread failed the engine: tells the other ranks now, not when they miss this one.
  void engine_failed() {
    commands_.post([] {});
  }

 private:
  // An attempt to join, and the calls that run beside the driving thread.
  struct Joining {
    void stop() {
      stopped = true;
      for (std::stop_source& each : stops) each.request_stop();
    }
    bool stopped = false;
    std::unique_ptr<Attempt> attempt;
    std::vector<std::stop_source> stops;  // of the calls to join, by site
    std::vector<std::future<void>> calls;
  };

  void serve() override;
  void prepare(runtime::ProgressThread::Wait& wait) override;
  void turn();  // all that there is to do now
  void hear();  // outcomes of calls in flight
  void carry_out();
  void carry_out(const session::Rank::Prepare& prepare);
  void carry_out(const session::Rank::Join& join);
  void carry_out(const session::Rank::Cancel& cancel);
  void carry_out(const session::Rank::Start& start);
  void carry_out(const session::Rank::Beat& beat);
  void carry_out(const session::Rank::Look& look);
  void carry_out(const session::Rank::Leave& leave);
  void carry_out(const session::Rank::Suspend& suspend);
  void carry_out(const session::Rank::Retry& retry);
  void carry_out(const session::Rank::Warn& warn);
  void carry_out(const session::Rank::End& end);
  // Runs `call` on a thread of its own. done(its result) or failed(its error) follows on the driving thread, unless another
  // attempt to join has begun.
  template <class Call, class Done, class Failed>
  void beside(Call call, Done done, Failed failed);
  [[nodiscard]] std::uint32_t rank_at(std::uint32_t place) const;
  [[nodiscard]] std::optional<session::Stall> oldest_stall() override;
  [[nodiscard]] std::string call(std::uint64_t operation) override;
  [[nodiscard]] std::optional<Overdue> overdue(Time now) override;
  [[nodiscard]] session::Pace pace(Time now) override;

  const Options options_;
  const MakeRank make_;
  session::Rank rank_;  // of the driving thread, like the members up to the empty line
  std::uint64_t attempts_ = 0;
  std::unique_ptr<Joining> joining_;
  std::vector<std::unique_ptr<control::Client>> clients_;  // by site, since on_prepared(); while a site is asked to admit
                                                           // the rank, its client is the call's that runs beside
  std::vector<std::unique_ptr<control::Client>> former_clients_;  // of the life before, until the next one runs
  std::vector<bool> calling_;                                     // by site: a heartbeat or a goodbye is in flight
  std::map<std::size_t, control::Client> looking_;                // by number, at aggregators that do not serve the job
  std::optional<Joined> joined_;                                  // for join()
  std::optional<Error> error_;                                    // for join()
  std::vector<std::size_t> aggregator_of_lane_;
  RankSet members_;  // of the life that runs; empty: all
  std::uint32_t packet_elements_ = 0;
  stream::Progress progress_;
  runtime::Engine* engine_ = nullptr;
  runtime::WorkerEngine* recovering_ = nullptr;

  runtime::Commands commands_{[] {}};
  std::mutex mutex_;  // guards the values below
  Time next_deadline_ = never;
  RankSet left_;
  std::optional<std::uint32_t> successor_;
  bool knocked_ = false;
  bool aside_ = false;  // the next call wakes the thread

  std::shared_ptr<runtime::ProgressThread> thread_;  // between start() and stop()
};

}  // namespace netsum::collective
