#include "collective/monitor.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/thread.h"

namespace netsum::collective {
namespace {

using runtime::now;
using std::chrono::milliseconds;

constexpr Duration beat_interval = milliseconds(500);
constexpr milliseconds beat_deadline{1000};
constexpr Duration silence_allowed = std::chrono::seconds(3);  // of an aggregator
constexpr milliseconds leave_deadline{1000};
constexpr Duration retry_interval = milliseconds(100);  // while control does not say why a lane dropped the job

std::string seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

std::string name_ranks(const RankSet& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  bool first = true;
  for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
    if (!ranks.contains(rank)) continue;
    text += (first ? "" : ", ") + std::to_string(rank);
    first = false;
  }
  return text;
}

}  // namespace

Monitor::Monitor(const Options& options, std::vector<Membership> memberships, std::vector<std::size_t> aggregator_of_lane)
    : options_(options), aggregator_of_lane_(std::move(aggregator_of_lane)) {
  for (Membership& membership : memberships) sites_.push_back({std::move(membership), now()});
}

Monitor::~Monitor() {
  stop();
}

void Monitor::start(runtime::WorkerEngine& engine) {
  engine_ = &engine;
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
  for (Site& site : sites_) {
    try {
      site.membership.client->leave(site.membership.job_epoch, options_.rank, site.membership.rank_epoch, leave_deadline);
    } catch (const Error&) {
      // An aggregator that is gone needs no goodbye.
    }
  }
}

void Monitor::lane_failed(std::uint32_t lane, const switchml::WorkerFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!lane_failure_) lane_failure_ = {lane, failure};
  }
  changed_.notify_all();
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
    std::optional<std::pair<std::uint32_t, switchml::WorkerFailure>> lane_failure;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock,
                          std::chrono::steady_clock::time_point(std::min(next_beat, next_deadline_).time_since_epoch()),
                          [&] { return stopping_ || lane_failure_ || now() >= std::min(next_beat, next_deadline_); });
      if (stopping_) return;
      lane_failure = std::exchange(lane_failure_, std::nullopt);
    }
    std::optional<Error> error;
    if (lane_failure) {
      error = explain(lane_failure->first, lane_failure->second);
      next_beat = now() + retry_interval;
    }
    if (!error) error = check_deadlines();
    if (!error && now() >= next_beat) {
      next_beat = now() + beat_interval;
      for (Site& site : sites_) {
        if (!error) error = beat(site);
        if (site.dropped) next_beat = now() + retry_interval;
      }
      if (!error) error = check_left();
    }
    if (error) engine_->fail(*error);
    if (engine_->failure()) {
      leave();  // the others then know that this rank will not contribute, and that it did not just die
      return;
    }
  }
}

std::optional<Error> Monitor::beat(Site& site) {
  const std::string at = "aggregator " + site.membership.address;
  try {
    const auto reply = site.membership.client->heartbeat(site.membership.job_epoch, options_.rank,
                                                         site.membership.rank_epoch, beat_deadline);
    site.heard = now();
    using State = session::HeartbeatReply::State;
    if (reply.state == State::unknown) {
      return Error(ErrorCode::aggregator_restarted, at + " no longer knows " + job() +
                                                        ": it was restarted; start the job again (this is rank " +
                                                        std::to_string(options_.rank) + ")");
    }
    if (reply.state == State::failed) {
      return Error(reply.lost ? ErrorCode::worker_lost : ErrorCode::aggregator_lost, reply.reason + " (said by " + at + ")");
    }
    if (site.dropped) return Error(ErrorCode::aggregator_restarted, at + " no longer serves " + job());
    for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
      if (!reply.left.contains(rank) || left_.contains(rank)) continue;
      left_.insert(rank);
      left_since_ = site.heard;
    }
    return std::nullopt;
  } catch (const Error& error) {
    if (now() - site.heard < silence_allowed) return std::nullopt;
    return Error(ErrorCode::aggregator_lost, at + (site.dropped ? " no longer serves this job, and" : "") +
                                                 " has not answered for " + seconds(silence_allowed) + " (" + job() +
                                                 ", rank " + std::to_string(options_.rank) + "): " + error.what());
  }
}

// A rank that left will not contribute: whoever waits for it would wait until the deadline.
std::optional<Error> Monitor::check_left() {
  if (left_.empty()) return std::nullopt;
  const auto stalled = engine_->oldest_stall();
  // What the switch said before they left may be out of date: they may have contributed, and left after the result.
  if (!stalled || stalled->stall.told < left_since_ + beat_interval) return std::nullopt;
  const RankSet gone = stalled->stall.missing.minus(stalled->stall.missing.minus(left_));
  if (gone.empty()) return std::nullopt;
  return Error(ErrorCode::worker_lost, job() + ": operation " + std::to_string(stalled->stall.operation) + " waits for " +
                                           name_ranks(gone) + ", which left the job: its own error says why");
}

std::optional<Error> Monitor::explain(std::uint32_t lane, const switchml::WorkerFailure& failure) {
  Site& site = sites_[aggregator_of_lane_[lane]];
  if (failure.kind == switchml::WorkerFailure::Kind::mismatch) {
    std::string own;
    if (const auto pending = engine_->find(failure.operation)) {
      own = "; this is rank " + std::to_string(options_.rank) + ", with " + stream::to_string(pending->operation);
    }
    return Error(ErrorCode::mismatch, job() + ": ranks " + std::to_string(failure.first_rank) + " and " +
                                          std::to_string(failure.second_rank) + " issued different calls as operation " +
                                          std::to_string(failure.operation) + own);
  }
  // Control knows why. If it does not answer, it may be on its way down, or up again: asked until it has been silent long.
  site.dropped = true;
  return beat(site);
}

std::optional<Error> Monitor::check_deadlines() {
  std::shared_ptr<runtime::PendingOperation> urgent;
  {
    const std::lock_guard lock(mutex_);  // around both: a deadline that watch() brings meanwhile must not be overwritten
    urgent = engine_->most_urgent();
    next_deadline_ = urgent ? urgent->deadline : never;
  }
  if (!urgent || now() < urgent->deadline) return std::nullopt;
  std::string text = job() + ", rank " + std::to_string(options_.rank) + ": operation " +
                     std::to_string(urgent->operation.number) + " (" + stream::to_string(urgent->operation) +
                     ") did not end within its " + seconds(urgent->deadline - urgent->issued);
  if (const auto stalled = engine_->oldest_stall()) {
    const std::string& address = sites_[aggregator_of_lane_[stalled->lane]].membership.address;
    text += ": chunk " + std::to_string(stalled->stall.chunk) + " of operation " + std::to_string(stalled->stall.operation);
    text += stalled->stall.missing.empty() ? " has no answer from aggregator " + address
                                           : " waits for " + name_ranks(stalled->stall.missing);
  }
  return Error(ErrorCode::deadline, text);
}

}  // namespace netsum::collective
