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
      lane_failure = lane_failure_;
    }
    std::optional<Error> error;
    if (lane_failure) error = explain(lane_failure->first, lane_failure->second);
    if (!error) error = check_deadlines();
    if (!error && now() >= next_beat) {
      next_beat = now() + beat_interval;
      for (Site& site : sites_) {
        if (!error) error = beat(site);
      }
      if (!error) error = check_left();
    }
    if (error) {
      engine_->fail(*error);
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
    for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
      if (reply.left.contains(rank)) left_.insert(rank);
    }
    return std::nullopt;
  } catch (const Error& error) {
    if (now() - site.heard < silence_allowed) return std::nullopt;
    return Error(ErrorCode::aggregator_lost, at + " has not answered for " + seconds(silence_allowed) + " (" + job() +
                                                 ", rank " + std::to_string(options_.rank) + "): " + error.what());
  }
}

// A rank that left will not contribute: whoever waits for it would wait until the deadline.
std::optional<Error> Monitor::check_left() {
  if (left_.empty()) return std::nullopt;
  const auto stalled = engine_->oldest_stall();
  if (!stalled) return std::nullopt;
  const RankSet gone = stalled->stall.missing.minus(stalled->stall.missing.minus(left_));
  if (gone.empty()) return std::nullopt;
  return Error(ErrorCode::worker_lost, job() + ": operation " + std::to_string(stalled->stall.operation) + " waits for " +
                                           name_ranks(gone) + ", which left the job");
}

Error Monitor::explain(std::uint32_t lane, const switchml::WorkerFailure& failure) {
  Site& site = sites_[aggregator_of_lane_[lane]];
  if (failure.kind == switchml::WorkerFailure::Kind::mismatch) {
    std::string own;
    if (const auto pending = engine_->find(failure.operation)) {
      own = "; this is rank " + std::to_string(options_.rank) + ", with " + stream::to_string(pending->operation);
    }
    return {ErrorCode::mismatch, job() + ": ranks " + std::to_string(failure.first_rank) + " and " +
                                     std::to_string(failure.second_rank) + " issued different calls as operation " +
                                     std::to_string(failure.operation) + own};
  }
  // The switch dropped the job: control knows why.
  if (auto reason = beat(site)) return *reason;
  return {ErrorCode::aggregator_restarted, "aggregator " + site.membership.address + " no longer serves " + job()};
}

std::optional<Error> Monitor::check_deadlines() {
  const auto urgent = engine_->most_urgent();
  {
    const std::lock_guard lock(mutex_);
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
