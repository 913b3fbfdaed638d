#include "collective/monitor.h"

#include <algorithm>
#include <future>
#include <stop_token>
#include <utility>

#include "runtime/thread.h"
#include "session/words.h"

namespace netsum::collective {
namespace {

using runtime::now;
using std::chrono::milliseconds;

constexpr auto beat_deadline = std::chrono::duration_cast<milliseconds>(session::beat_patience);
constexpr milliseconds leave_deadline{1000};
constexpr milliseconds recovery_poll{100};

std::vector<std::string> addresses(const std::vector<Membership>& memberships) {
  std::vector<std::string> list;
  for (const Membership& membership : memberships) list.push_back(membership.address);
  return list;
}

}  // namespace

Monitor::Monitor(const Options& options, Joined& joined) : options_(options) {
  attend(joined);
}

Monitor::~Monitor() {
  stop();
}

void Monitor::attend(Joined& joined) {
  memberships_ = std::move(joined.memberships);
  aggregator_of_lane_ = std::move(joined.aggregator_of_lane);
  packet_elements_ = joined.packet_elements;
  session::Supervisor::Config config{options_.job, options_.rank, addresses(memberships_), joined.traits.predecessor};
  supervisor_.emplace(std::move(config), now());
}

void Monitor::start(runtime::Engine& engine, runtime::WorkerEngine* recovering) {
  engine_ = &engine;
  recovering_ = recovering;
  const runtime::SignalsBlocked blocked;
  thread_ = std::thread([this] {
    runtime::enter_thread("netsum-monitor", -1);
    loop();
  });
}

void Monitor::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Monitor::leave() {
  if (std::exchange(goodbye_, true)) return;
  for (const Membership& membership : memberships_) {
    try {
      membership.client->leave(membership.job_epoch, options_.rank, membership.rank_epoch, leave_deadline);
    } catch (const Error&) {
      // An aggregator that is gone needs no goodbye.
    }
  }
}

void Monitor::lane_failed(std::uint32_t lane, const runtime::LaneFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!lane_failure_) lane_failure_ = {lane, failure};
  }
  changed_.notify_all();
}

bool Monitor::has_left(std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  return left_.contains(rank);
}

void Monitor::watch(Time deadline) {
  bool earlier = false;
  {
    const std::lock_guard lock(mutex_);
    earlier = deadline < next_deadline_;
    next_deadline_ = std::min(next_deadline_, deadline);
  }
  if (earlier) changed_.notify_all();
}

void Monitor::engine_failed() {
  {
    const std::lock_guard lock(mutex_);
    next_deadline_ = Time::min();
  }
  changed_.notify_all();
}

void Monitor::loop() {
  Time next_beat = now();
  while (true) {
    std::optional<std::pair<std::uint32_t, runtime::LaneFailure>> lane_failure;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock,
                          std::chrono::steady_clock::time_point(std::min(next_beat, next_deadline_).time_since_epoch()),
                          [&] { return stopping_ || lane_failure_ || now() >= std::min(next_beat, next_deadline_); });
      if (stopping_) return;
      lane_failure = std::exchange(lane_failure_, std::nullopt);
    }
    std::optional<Error> error;
    if (lane_failure) error = explain(lane_failure->first, lane_failure->second);
    if (!error) error = check_deadlines();
    if (!error && (lane_failure || now() >= next_beat)) {
      for (std::size_t site = 0; site < memberships_.size() && !error; ++site) error = beat(site);
      if (!error) error = supervisor_->check_left(oldest_stall());
      const std::lock_guard lock(mutex_);
      left_ = supervisor_->left();
      next_beat = now() + supervisor_->interval();
    }
    if (error && !engine_->failure()) error = recover(*error);
    if (error) engine_->fail(*error);
    if (engine_->failure()) {
      leave();  // so the others know that this rank will not contribute, and did not just die
      return;
    }
  }
}

std::optional<Error> Monitor::recover(const Error& cause) {
  const ErrorCode code = cause.code();
  if (recovering_ == nullptr || !session::recoverable(code)) return cause;
  const Time deadline = runtime::after(now(), runtime::bounded(options_.recovery));
  if (options_.log) {
    options_.log("warning: " + std::string(cause.what()) + "; rank " + std::to_string(options_.rank) + " waits up to " +
                 session::in_seconds(deadline - now()) + " for all ranks to join again");
  }
  recovering_->suspend();
  {
    const std::lock_guard lock(mutex_);
    lane_failure_.reset();  // of a lane that no longer exists
  }
  Former former{recovering_->progress(), packet_elements_, {}};
  for (const Membership& membership : memberships_) former.rank_epochs[membership.address] = membership.rank_epoch;

  Error last = cause;
  while (now() < deadline) {
    std::stop_source stop;
    auto joining = std::async(std::launch::async, [&] { return join_again(options_, former, deadline, stop.get_token()); });
    std::optional<Error> overdue;
    while (joining.wait_for(recovery_poll) != std::future_status::ready) {
      overdue = check_deadlines();
      const std::lock_guard lock(mutex_);
      if (overdue || stopping_ || engine_->failure()) stop.request_stop();
    }
    try {
      Joined joined = joining.get();
      attend(joined);
      const std::uint64_t first = joined.resumption.first;
      recovering_->resume(std::move(joined.lanes), joined.resumption);
      if (options_.log) {
        options_.log("rank " + std::to_string(options_.rank) + " goes on with operation " + std::to_string(first) + ": " +
                     joined.traits.placement);
      }
      return std::nullopt;
    } catch (const Error& error) {
      last = error;
    }
    if (overdue) return overdue;
    std::unique_lock lock(mutex_);
    if (stopping_ || engine_->failure()) return Error(ErrorCode::closed, "the communicator was closed");
    changed_.wait_for(lock, recovery_poll, [&] { return stopping_; });
  }
  return Error(code, std::string(cause.what()) + "; the job did not come together again within " +
                         session::in_seconds(runtime::bounded(options_.recovery)) + ": " + last.what());
}

std::optional<Error> Monitor::beat(std::size_t site) {
  const Membership& membership = memberships_[site];
  try {
    const auto reply =
        membership.client->heartbeat(membership.job_epoch, options_.rank, membership.rank_epoch, beat_deadline);
    return supervisor_->on_reply(site, reply, now());
  } catch (const Error& error) {
    return supervisor_->on_no_reply(site, error.what(), now());
  }
}

std::optional<session::Stall> Monitor::oldest_stall() {
  const auto stalled = engine_->oldest_stall();
  if (!stalled) return std::nullopt;
  const runtime::ChunkStall& stall = stalled->stall;
  return session::Stall{aggregator_of_lane_[stalled->lane], stall.operation, stall.chunk, stall.missing, stall.told};
}

// A lane whose job is unknown is no error yet: the next heartbeat gives the reason.
std::optional<Error> Monitor::explain(std::uint32_t lane, const runtime::LaneFailure& failure) {
  if (failure.kind == runtime::LaneFailure::Kind::unknown_job) {
    supervisor_->on_job_dropped(aggregator_of_lane_[lane]);
    return std::nullopt;
  }
  if (failure.kind == runtime::LaneFailure::Kind::unsealed) {
    return supervisor_->unsealed(aggregator_of_lane_[lane], failure.operation, failure.what);
  }
  const auto pending = engine_->find(failure.operation);
  return supervisor_->mismatch(failure.operation, failure.first_rank, failure.second_rank,
                               pending ? stream::to_string(pending->operation) : "");
}

std::optional<Error> Monitor::check_deadlines() {
  std::shared_ptr<runtime::PendingOperation> urgent;
  {
    const std::lock_guard lock(mutex_);  // around both: must not overwrite a deadline that watch() sets meanwhile
    urgent = engine_->most_urgent();
    next_deadline_ = urgent ? urgent->deadline : never;
  }
  if (!urgent || now() < urgent->deadline) return std::nullopt;
  return supervisor_->overdue(urgent->operation.number, stream::to_string(urgent->operation),
                              urgent->deadline - urgent->issued, oldest_stall());
}

}  // namespace netsum::collective
