#include "collective/monitor.h"

#include <poll.h>

#include <algorithm>
#include <functional>
#include <future>
#include <iterator>
#include <system_error>
#include <utility>

#include "session/supervisor.h"
#include "session/words.h"

namespace netsum::collective {
namespace {

using runtime::now;
using std::chrono::milliseconds;

// The call's own words for a silent aggregator come before the machine's.
constexpr auto beat_deadline = std::chrono::duration_cast<milliseconds>(session::beat_patience) - milliseconds(10);
// A leave may follow a beat in flight on the same connection, and wait for its turn there.
constexpr milliseconds leave_deadline = 2 * beat_deadline;
constexpr milliseconds recovery_pause{100}, survivors_pause{5};  // before each attempt to join again

session::Rank::Config config_of(const Options& options, const RankProtocol& protocol) {
  check(options, protocol);
  session::Rank::Config config;
  config.job = options.job;
  config.rank = options.rank;
  config.aggregators = options.aggregators;
  config.aggregators.insert(config.aggregators.end(), options.standbys.begin(), options.standbys.end());
  config.standbys = static_cast<std::uint32_t>(options.standbys.size());
  config.predecessor = protocol.predecessor();
  config.switch_address = protocol.switch_address();
  config.recovers = options.recovery.count() > 0;
  config.recovery = runtime::bounded(options.recovery);
  config.survivors = options.survivors;
  config.straggler_deadline = options.straggler_deadline;
  // With another aggregator to turn to.
  const bool soon = options.survivors != 0 && config.aggregators.size() > 1;
  config.silence = soon ? std::min(options.heartbeat_timeout, options.survivor_timeout) : options.heartbeat_timeout;
  config.pause = [pause = options.survivors == 0 ? recovery_pause : survivors_pause] { return pause; };
  return config;
}

// "with all 4 ranks", "with ranks 0, 1, 3 of 4"
std::string in_words(const RankSet& members, std::uint32_t world_size) {
  const bool all = members.empty() || members.size() == world_size;
  return all ? "with all " + std::to_string(world_size) + " ranks"
             : "with " + session::name_ranks(members) + " of " + std::to_string(world_size);
}

}  // namespace

Monitor::Monitor(const Options& options, MakeRank make)
    : options_(options), make_(std::move(make)), rank_(config_of(options_, *make_(options_)), *this) {
  if (options.first_operation) progress_ = {*options.first_operation, *options.first_operation, {}};
}

Monitor::~Monitor() {
  stop();
  if (joining_) joining_->stop();
  joining_.reset();  // its calls post commands
}

Joined Monitor::join() {
  const runtime::Wakeup wakeup;
  commands_.hand_over([&wakeup] { wakeup.notify(); });
  // Calls that run beside may end later than this one.
  struct NoLonger {
    runtime::Commands& commands;
    ~NoLonger() {
      commands.hand_over([] {});
    }
  } const no_longer{commands_};
  const std::stop_callback on_stop(options_.stop, [this] {
    commands_.post([this] {
      if (joining_) joining_->stop();
    });
  });
  rank_.begin(after(now(), std::min<Duration>(longest_join, runtime::bounded(options_.connect_deadline))));
  carry_out();
  runtime::ProgressThread::Wait wait;
  while (!joined_ && !error_) {
    wait.descriptors.assign(1, {wakeup.descriptor(), POLLIN, 0});
    wait.until = never;
    prepare(wait);
    runtime::wait_for(wait.descriptors, wait.until);
    wakeup.drain();
    turn();
  }
  if (error_) throw Error(*error_);
  return std::move(*joined_);
}

void Monitor::start(runtime::Engine& engine, runtime::WorkerEngine* recovering) {
  engine_ = &engine;
  recovering_ = recovering;
  thread_ = runtime::ProcessWide::get<runtime::ProgressThread>({.kind = runtime::ProcessWide::Kind::monitor});
  commands_.hand_over([this] { thread_->notify(); });
  thread_->add(*this);
}

void Monitor::stop() {
  if (!thread_) return;
  thread_->remove(*this);
  commands_.hand_over([] {});
  thread_.reset();
}

void Monitor::leave(const Error* why) {
  rank_.leave(why);
  carry_out();
  while (std::find(calling_.begin(), calling_.end(), true) != calling_.end()) {
    runtime::ProgressThread::Wait wait;
    prepare(wait);
    runtime::wait_for(wait.descriptors, wait.until);
    hear();
  }
}

void Monitor::lane_failed(std::uint32_t lane, const protocol::LaneFailure& failure) {
  commands_.post([this, lane, failure] {
    if (!rank_.running()) return;  // the lane no longer exists
    protocol::LaneFailure told = failure;
    told.first_rank = rank_at(failure.first_rank);
    told.second_rank = rank_at(failure.second_rank);
    rank_.on_lane_failure(aggregator_of_lane_[lane], told, now());
  });
}

bool Monitor::successor_has_left() {
  const std::lock_guard lock(mutex_);
  return successor_ && left_.contains(*successor_);
}

bool Monitor::knocked() {
  const std::lock_guard lock(mutex_);
  return knocked_;
}

void Monitor::let_in() {
  const auto done = std::make_shared<std::promise<void>>();
  commands_.post([this, done] {
    rank_.let_in(now());
    carry_out();
    done->set_value();
  });
  done->get_future().wait();
}

void Monitor::watch(Time deadline) {
  bool earlier = false;
  {
    const std::lock_guard lock(mutex_);
    earlier = deadline < next_deadline_ || aside_;
    next_deadline_ = std::min(next_deadline_, deadline);
  }
  if (earlier) commands_.post([] {});
}

// ---- the driving thread

void Monitor::serve() {
  if (const auto failure = engine_->failure(); failure && !rank_.ended()) {  // another thread has failed the engine
    rank_.leave(failure.get());
  }
  turn();
  {
    const std::lock_guard lock(mutex_);
    left_ = rank_.left();
    knocked_ = !rank_.knocking().empty();
    aside_ = rank_.aside();
  }
  if (!rank_.aside()) return;
  rank_.on_timer(now());  // a call may have been made just before
  carry_out();
}

void Monitor::turn() {
  commands_.run_all();
  hear();
  rank_.on_timer(now());
  carry_out();
}

void Monitor::prepare(runtime::ProgressThread::Wait& wait) {
  if (!rank_.ended()) {
    const std::lock_guard lock(mutex_);
    wait.until = std::min({wait.until, rank_.next_timeout(), next_deadline_});
  }
  for (std::size_t site = 0; site < clients_.size(); ++site) {
    if (!calling_[site]) continue;
    wait.descriptors.push_back(clients_[site]->watched());
    wait.until = std::min(wait.until, clients_[site]->wake_by());
  }
  for (const auto& [number, client] : looking_) {
    wait.descriptors.push_back(client.watched());
    wait.until = std::min(wait.until, client.wake_by());
  }
}

void Monitor::hear() {
  for (std::size_t site = 0; site < clients_.size(); ++site) {
    if (!calling_[site]) continue;
    try {
      const auto reply = clients_[site]->step();
      if (!reply) continue;
      calling_[site] = false;
      if (!rank_.ended()) rank_.on_reply(site, *reply, now());
    } catch (const Error& error) {
      calling_[site] = false;
      // An aggregator that is gone needs no goodbye.
      if (!rank_.ended()) rank_.on_no_reply(site, error.what(), now(), clients_[site]->refused());
    }
  }
  for (auto entry = looking_.begin(); entry != looking_.end();) {
    std::optional<bool> answers;
    try {
      if (entry->second.step()) answers = true;
    } catch (const Error&) {
      answers = false;
    }
    if (answers) rank_.on_looked(entry->first, *answers, now());
    entry = answers ? looking_.erase(entry) : std::next(entry);
  }
}

void Monitor::carry_out() {
  for (auto actions = rank_.take_actions(); !actions.empty(); actions = rank_.take_actions()) {
    for (const auto& action : actions) {
      std::visit([this](const auto& a) { carry_out(a); }, action);
    }
  }
}

template <class Call, class Done, class Failed>
void Monitor::beside(Call call, Done done, Failed failed) {
  auto task = [this, call, done, failed, number = attempts_] {
    std::function<void()> then;
    try {
      then = [done, result = std::make_shared<decltype(call())>(call())] { done(*result); };
    } catch (const Error& error) {
      then = [failed, error] { failed(error); };
    } catch (const std::exception& error) {
      then = [failed, text = std::string(error.what())] { failed(Error(ErrorCode::internal, text)); };
    }
    commands_.post([this, number, then] {
      if (number == attempts_) then();
    });
  };
  try {
    const runtime::SignalsBlocked blocked;
    joining_->calls.push_back(std::async(std::launch::async, std::move(task)));
  } catch (const std::system_error& error) {
    failed(Error(ErrorCode::internal, std::string("cannot start the thread that joins the job: ") + error.what()));
  }
}

void Monitor::carry_out(const session::Rank::Prepare& prepare) {
  ++attempts_;
  joining_ = std::make_unique<Joining>();
  const auto reach = [this, prepare] {
    Options some = options_;
    some.aggregators = prepare.aggregators;
    return prepare.again ? prepare_again(std::move(some), make_, packet_elements_, prepare.past_switch, prepare.deadline)
                         : collective::prepare(std::move(some), make_, prepare.deadline);
  };
  const auto done = [this](std::unique_ptr<Attempt>& attempt) {
    joining_->attempt = std::move(attempt);
    // An aggregator that has not heard of a death yet must not take the end of a connection for another one.
    std::move(clients_.begin(), clients_.end(), std::back_inserter(former_clients_));
    clients_.clear();
    std::vector<std::string> addresses;
    for (Site& site : joining_->attempt->reach.sites) {
      clients_.push_back(std::move(site.client));
      addresses.push_back(site.address);
    }
    calling_.assign(clients_.size(), false);
    joining_->stops.resize(clients_.size());
    if (joining_->stopped) joining_->stop();
    const bool past = joining_->attempt->past_switch;
    rank_.on_prepared(std::move(addresses), never, now(), past);  // each call has its deadline, and brings the reason
  };
  beside(reach, done, [this](const Error& error) { rank_.on_unprepared(error, now()); });
}

// Joins run at once: an aggregator answers only when every rank has joined there, and ranks must not wait for each other in
// turn.
void Monitor::carry_out(const session::Rank::Join& join) {
  const Attempt& attempt = *joining_->attempt;
  const Site& site = attempt.reach.sites[join.site];
  session::JoinRequest request = request_of(attempt, site);
  request.progress = progress_;
  rank_.complete(join.site, request);
  const auto call = [client = clients_[join.site].get(), request = std::move(request), rules = attempt.protocol->rules(),
                     deadline = attempt.deadline, stop = joining_->stops[join.site].get_token()] {
    return client->join(request, rules, remaining(deadline), stop);
  };
  beside(
      call, [this, join](const session::Admission& admission) { rank_.on_admitted(join.site, admission, now()); },
      [this, join](const Error& error) { rank_.on_refused(join.site, error, now()); });
}

void Monitor::carry_out(const session::Rank::Cancel& cancel) {
  joining_->stops[cancel.site].request_stop();
}

void Monitor::carry_out(const session::Rank::Start& start) {
  // Calls to the others may still be on their way to an end.
  std::vector<Site> sites;
  std::vector<std::unique_ptr<control::Client>> clients;
  std::vector<bool> calling;
  for (const std::size_t site : start.sites) {
    sites.push_back(std::move(joining_->attempt->reach.sites[site]));
    clients.push_back(std::move(clients_[site]));
    calling.push_back(calling_[site]);
  }
  std::erase(clients_, nullptr);
  std::move(clients_.begin(), clients_.end(), std::back_inserter(former_clients_));
  joining_->attempt->options.aggregators.clear();
  for (const Site& site : sites) joining_->attempt->options.aggregators.push_back(site.address);
  joining_->attempt->reach.sites = std::move(sites);
  clients_ = std::move(clients);
  calling_ = std::move(calling);
  Joined joined;
  try {
    joined = begin_lanes(*joining_->attempt, rank_.admissions());
    members_ = joined.resumption.members;
    {
      const std::lock_guard lock(mutex_);
      successor_ = joined.traits.successor;
    }
    aggregator_of_lane_ = std::move(joined.aggregator_of_lane);
    packet_elements_ = joined.packet_elements;
    if (engine_ != nullptr) recovering_->resume(std::move(joined.lanes), joined.resumption, joined.late_ranks);
  } catch (const Error& error) {
    return rank_.on_start_failed(error, now());
  }
  joining_.reset();
  former_clients_.clear();
  rank_.on_started(now());
  if (engine_ == nullptr) {
    joined_ = std::move(joined);
  } else if (options_.log) {
    options_.log("rank " + std::to_string(options_.rank) + " continues with operation " +
                 std::to_string(joined.resumption.first) + ", " + in_words(joined.resumption.members, options_.world_size) +
                 ": " + joined.traits.placement);
  }
}

void Monitor::carry_out(const session::Rank::Beat& beat) {
  const control::Life life{beat.life.job_epoch, options_.rank, beat.life.rank_epoch, {}};
  clients_[beat.site]->begin_heartbeat({life, beat.call, beat.seen, beat.pace}, beat_deadline);
  calling_[beat.site] = true;
}

void Monitor::carry_out(const session::Rank::Look& look) {
  looking_.erase(look.number);
  try {
    const auto client =
        looking_.try_emplace(look.number, control::ClientOptions{look.address, options_.token, options_.tls_ca}).first;
    client->second.begin_hello(std::chrono::duration_cast<milliseconds>(session::look_patience));
  } catch (const Error&) {  // the CA's file is being replaced
    looking_.erase(look.number);
    rank_.on_looked(look.number, false, now());
  }
}

void Monitor::carry_out(const session::Rank::Leave& leave) {
  clients_[leave.site]->begin_leave({leave.life.job_epoch, options_.rank, leave.life.rank_epoch, leave.why}, leave_deadline);
  calling_[leave.site] = true;
}

void Monitor::carry_out(const session::Rank::Suspend& suspend) {
  if (options_.log) {
    options_.log("warning: " + std::string(suspend.cause.what()) + "; rank " + std::to_string(options_.rank) +
                 " waits up to " + session::in_seconds(suspend.patience) + " for " +
                 (options_.survivors == 0 ? "all" : "at least " + std::to_string(options_.survivors)) +
                 " ranks to join again");
  }
  recovering_->suspend();
  progress_ = recovering_->progress();
}

void Monitor::carry_out(const session::Rank::Retry&) {}

void Monitor::carry_out(const session::Rank::Warn& warn) {
  if (options_.log) options_.log(warn.text);
}

void Monitor::carry_out(const session::Rank::End& end) {
  if (engine_ == nullptr) {
    error_ = end.error;  // join() throws it
    return;
  }
  engine_->fail(end.error);
  if (options_.log) options_.log(std::string("error: ") + end.error.what());
  if (options_.on_failure) options_.on_failure(end.error);
}

// ---- for the session machine

std::optional<session::Stall> Monitor::oldest_stall() {
  const auto stalled = engine_->oldest_stall();
  if (!stalled) return std::nullopt;
  const protocol::ChunkStall& stall = stalled->stall;
  const RankSet missing = members_.empty() ? stall.missing : members_.at_places(stall.missing);
  return session::Stall{aggregator_of_lane_[stalled->lane], stall.operation, stall.chunk, missing, stall.told};
}

std::uint32_t Monitor::rank_at(std::uint32_t place) const {
  return members_.empty() || place >= members_.size() ? place : members_.at_place(place);
}

std::string Monitor::call(std::uint64_t operation) {
  const auto pending = engine_->find(operation);
  return pending ? stream::to_string(pending->operation) : "";
}

session::Pace Monitor::pace(Time now) {
  const runtime::WorkerEngine::Pace pace = recovering_->pace();
  const Duration since = std::max(Duration::zero(), now - pace.called.value_or(pace.free_since));
  return {pace.called.has_value(), pace.next, std::chrono::duration_cast<milliseconds>(since)};
}

std::optional<Monitor::Overdue> Monitor::overdue(Time now) {
  if (engine_ == nullptr) return std::nullopt;
  std::shared_ptr<runtime::PendingOperation> urgent;
  {
    const std::lock_guard lock(mutex_);
    if (now < next_deadline_) return std::nullopt;
    urgent = engine_->most_urgent();  // under the lock: must not overwrite a deadline that watch() sets meanwhile
    next_deadline_ = urgent ? urgent->deadline : never;
  }
  if (!urgent || now < urgent->deadline) return std::nullopt;
  return Overdue{urgent->operation.number, stream::to_string(urgent->operation), urgent->deadline - urgent->issued};
}

}  // namespace netsum::collective
