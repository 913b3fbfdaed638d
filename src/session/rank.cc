#include "session/rank.h"

#include <algorithm>
#include <utility>

#include "session/words.h"

namespace netsum::session {
namespace {

FailureCause cause_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::mismatch:
      return FailureCause::mismatch;
    case ErrorCode::deadline:
      return FailureCause::deadline;
    case ErrorCode::worker_lost:
      return FailureCause::left;
    case ErrorCode::aggregator_lost:
    case ErrorCode::aggregator_restarted:
      return FailureCause::aggregator_lost;
    default:
      return FailureCause::other;
  }
}

}  // namespace

std::vector<Rank::Action> Rank::take_actions() {
  return std::exchange(actions_, {});
}

// ---- joining

void Rank::begin(Time deadline) {
  phase_ = Phase::preparing;
  actions_.emplace_back(Prepare{deadline, false, config_.aggregators});
}

void Rank::on_prepared(std::vector<std::string> addresses, Time answer_by, Time now, bool past_switch) {
  if (phase_ != Phase::preparing) return;
  phase_ = Phase::joining;
  past_switch_ = past_switch;
  answer_by_ = answer_by;
  next_beat_ = never;
  sites_.clear();
  // Other ranks may reach others: this one looks again.
  if (cause_ && addresses.size() < tried_) {
    answer_by_ = std::min(answer_by_, after(now, config_.survivors == 0 ? look_again : look_interval));
  }
  for (std::string& address : addresses) {
    actions_.emplace_back(Join{sites_.size()});
    const std::uint32_t number = number_of(address);
    sites_.push_back({std::move(address), number, true});
  }
}

void Rank::on_unprepared(const Error& error, Time now) {
  if (phase_ != Phase::preparing) return;
  const std::string& at = error.details().aggregator;
  const std::uint32_t number = number_of(at);
  doubt(number, now);
  if (!at.empty() && at == config_.switch_address) doubt(switch_, now);
  if (number == aggregators_.size()) {  // perhaps what has just come back is not what it was
    seen_.for_each([&](std::uint32_t seen) { doubt(seen, now); });
    if (switch_seen_) doubt(switch_, now);
  }
  fail(error, now);
}

void Rank::complete(std::size_t site, JoinRequest& request) const {
  request.recovers = config_.recovers;
  if (!config_.recovers) return;
  request.aggregators = config_.aggregators;
  request.standbys = config_.standbys;
  request.site = sites_[site].number;
  for (const Site& each : sites_) request.reached.insert(each.number);
  request.survivors = config_.survivors;
  request.life = life_;
  request.members = members_;
  request.straggler_deadline = config_.straggler_deadline;
  request.pace = pace_;
  request.aside = aside_;
  request.set_aside = set_aside_;
  request.lets_in = lets_in_;
  if (const auto former = former_epochs_.find(sites_[site].address); former != former_epochs_.end()) {
    request.former_epoch = former->second;
  }
}

void Rank::on_admitted(std::size_t site, const Admission& admission, Time now) {
  if (phase_ != Phase::joining || !sites_[site].asked) return;
  sites_[site].asked = false;
  sites_[site].admission = admission;
  // While others still decide, the aggregators that have admitted this rank must not miss it.
  next_beat_ = std::min(next_beat_, now + beat_interval);
  if (config_.recovers) {
    part_from_others(admission.sites);
    if (cause_) answer_by_ = std::min(answer_by_, after(now, std::min(config_.silence, undecided_patience)));
  }
  decide(now);
}

// Not all ranks reach them, or they stand by.
void Rank::part_from_others(const SiteSet& sites) {
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    if (!sites.contains(sites_[i].number) && std::exchange(sites_[i].asked, false)) actions_.emplace_back(Cancel{i});
  }
}

void Rank::on_refused(std::size_t site, const Error& error, Time now) {
  if (phase_ != Phase::joining || !sites_[site].asked) return;
  sites_[site].asked = false;
  sites_[site].refusal = error;
  decide(now);
}

void Rank::decide(Time now) {
  if (std::any_of(sites_.begin(), sites_.end(), [](const Site& site) { return site.asked; })) return;
  const auto first = std::find_if(sites_.begin(), sites_.end(), [](const Site& site) { return site.admission.has_value(); });
  const auto serves = [&](const Site& site) {
    return first == sites_.end() || !config_.recovers || first->admission->sites.contains(site.number);
  };
  for (const Site& site : sites_) {
    if (!site.refusal || !serves(site)) continue;
    if (first != sites_.end()) doubt(site.number, now);  // the others do without it
    return fail(Error(*site.refusal), now);
  }
  for (const Site& site : sites_) {
    const std::string what = site.admission ? disagreement(*first->admission, *site.admission) : "";
    if (what.empty()) continue;
    return fail(Error(ErrorCode::refused, "the aggregators of job '" + config_.job + "' do not agree on " + what), now);
  }
  if (first->admission->aside.contains(config_.rank)) return step_aside(now);
  Start start;
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    if (sites_[i].admission) start.sites.push_back(i);
  }
  std::erase_if(sites_, [](const Site& site) { return !site.admission; });
  phase_ = Phase::starting;
  actions_.emplace_back(std::move(start));
}

// The program is late, and so are its values. Once it makes its call, this rank joins again, and gets the results that it
// missed. Until then it looks in again and again, so that no life begins that takes it for dead.
void Rank::step_aside(Time now) {
  sites_.clear();
  next_beat_ = never;
  set_aside_ = true;
  phase_ = Phase::waiting;
  next_attempt_ = now + look_interval;
  give_up_ = after(now, config_.recovery);
}

std::uint32_t Rank::number_of(const std::string& address) const {
  const auto found = std::find(config_.aggregators.begin(), config_.aggregators.end(), address);
  return static_cast<std::uint32_t>(found - config_.aggregators.begin());
}

// The ranks do without it for a while, which is longer each time, unless it has served them well meanwhile.
void Rank::doubt(std::uint32_t number, Time now) {
  if (number < aggregators_.size()) doubt(aggregators_[number], now);
}
void Rank::doubt(Aggregator& aggregator, Time now) {
  if (aggregator.served_since != never && now - aggregator.served_since > aggregator.doubt) aggregator.doubt = {};
  aggregator.served_since = never;
  aggregator.doubt = std::clamp(aggregator.doubt * 2, look_interval, longest_doubt);
  aggregator.doubted_until = aggregator.next_look = now + aggregator.doubt;
}

// Another rank may have found earlier that they are gone. To ask them would take their time.
void Rank::doubt_silent(Time now) {
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    if (supervisor_->silence(i, now) > config_.silence / 2) doubt(sites_[i].number, now);
  }
}

bool Rank::is_missed(std::uint32_t number) const {
  const auto first = static_cast<std::uint32_t>(aggregators_.size()) - config_.standbys;
  return config_.recovers && number < first && !serving_.contains(number);
}

void Rank::look_for_missed(Time now) {
  for (std::uint32_t number = 0; number < aggregators_.size(); ++number) {
    if (is_missed(number)) look_for(aggregators_[number], number, now);
  }
  if (past_switch_) look_for(switch_, own_switch, now);
}
void Rank::look_for(Aggregator& aggregator, std::size_t number, Time now) {
  if (aggregator.looking || now < aggregator.next_look) return;
  aggregator.looking = true;
  aggregator.next_look = now + look_interval;
  actions_.emplace_back(Look{number, number == own_switch ? config_.switch_address : config_.aggregators[number]});
}

void Rank::on_looked(std::size_t number, bool answers, Time now) {
  (number == own_switch ? switch_ : aggregators_[number]).looking = false;
  if (phase_ != Phase::running) return;
  if (number == own_switch) {
    if (!answers || dispute_) return;
    switch_seen_ = true;
    return fail(Error(ErrorCode::aggregator_restarted, "switch " + config_.switch_address + " answers rank " +
                                                           std::to_string(config_.rank) + " of job '" + config_.job +
                                                           "' again, and takes its part"),
                now);
  }
  SiteSet one;
  one.insert(static_cast<std::uint32_t>(number));
  seen_ = answers ? seen_.united(one) : seen_.minus(one);
}

std::vector<Admission> Rank::admissions() const {
  std::vector<Admission> all;
  for (const Site& site : sites_) all.push_back(*site.admission);
  return all;
}

void Rank::on_started(Time now) {
  if (phase_ != Phase::starting) return;
  phase_ = Phase::running;
  life_ = sites_.front().admission->life;
  members_ = sites_.front().admission->resumption.members;
  aside_ = sites_.front().admission->aside;
  set_aside_ = false;
  knocking_ = {};
  lets_in_ = false;
  // Those that did not come back are left alone for longer.
  serving_ = sites_.front().admission->sites;
  seen_.minus(serving_).for_each([&](std::uint32_t number) { doubt(number, now); });
  seen_ = {};
  if (std::exchange(switch_seen_, false) && past_switch_) doubt(switch_, now);
  if (!past_switch_) switch_.served_since = now;
  serving_.for_each([&](std::uint32_t number) { aggregators_[number].served_since = now; });
  for (Aggregator& each : aggregators_) each.next_look = std::max(each.next_look, now);
  switch_.next_look = std::max(switch_.next_look, now);
  cause_.reset();
  unsealed_.reset();
  dispute_.reset();
  std::optional<std::uint32_t> predecessor = config_.predecessor;
  if (predecessor && !members_.empty()) {
    predecessor = members_.at_place((members_.place_of(config_.rank) + members_.size() - 1) % members_.size());
  }
  Supervisor::Config config{config_.job, config_.rank, {}, predecessor, config_.silence};
  if (config_.survivors != 0) {
    config.interval = std::clamp(beat_interval_of_survivors * members_.size(), least_beat_interval, beat_interval);
    config.reconnect = reconnect_allowed_by_survivors;
  }
  config.silence = std::max(config.silence, 3 * config.interval);  // it must have been asked
  for (const Site& site : sites_) config.aggregators.push_back(site.address);
  supervisor_.emplace(std::move(config), now);
  next_beat_ = now;
}

void Rank::on_start_failed(const Error& error, Time now) {
  if (phase_ == Phase::starting) fail(error, now);
}

// ---- running

void Rank::on_reply(std::size_t site, const HeartbeatReply& reply, Time now) {
  if (site >= sites_.size()) return;
  sites_[site].beat_until = never;
  if (phase_ != Phase::running) return;  // if the job has failed already, the first heartbeat of the running rank says so
  ended_by_operator_ = reply.ended_by_operator;
  if (!reply.lost_switch.empty() && reply.lost_switch == config_.switch_address) doubt(switch_, now);
  knocking_ = reply.waiting;
  auto error = supervisor_->on_reply(site, reply, now);
  if (dispute_) {
    if (!dispute_->stated) return;  // this rank would leave, and the others never hear its call
    const bool others = std::any_of(reply.calls.begin(), reply.calls.end(),
                                    [this](const RankCall& stated) { return stated.call != dispute_->own; });
    if (others || (error && error->code() != ErrorCode::mismatch)) settle(reply.calls, now);
    return;
  }
  if (error && error->code() == ErrorCode::mismatch) {
    const auto stall = operations_.oldest_stall();
    return dispute(site, *error, stall ? operations_.call(stall->operation) : "", now);
  }
  if (!error && !supervisor_->left().empty()) error = supervisor_->check_left(operations_.oldest_stall());
  if (!error && unsealed_ && unsealed_->first == site) error = unsealed_->second;
  if (error) return fail(*error, now);
  if (const SiteSet returned = reply.returned.in_both(seen_); !returned.empty()) {
    return fail(Error(ErrorCode::aggregator_restarted, "aggregator " + config_.aggregators[returned.front()] +
                                                           " answers all ranks of job '" + config_.job +
                                                           "' again, and takes its part"),
                now);
  }
  if (auto warning = supervisor_->take_warning(site)) actions_.emplace_back(Warn{std::move(*warning)});
}

void Rank::on_no_reply(std::size_t site, const std::string& why, Time now, bool closed) {
  if (site >= sites_.size()) return;
  sites_[site].beat_until = never;
  if (phase_ != Phase::running) return;
  if (dispute_) return settle({}, now);
  supervisor_->on_no_reply(site, why, now, closed);
  if (unsealed_ && unsealed_->first == site) fail(Error(unsealed_->second), now);
}

void Rank::on_lane_failure(std::size_t site, const protocol::LaneFailure& failure, Time now) {
  if (phase_ != Phase::running) return;
  switch (failure.kind) {
    case protocol::LaneFailure::Kind::mismatch:
      return dispute(site, supervisor_->mismatch(failure.operation, failure.first_rank, failure.second_rank),
                     operations_.call(failure.operation), now);
    case protocol::LaneFailure::Kind::unsealed:
      // The site may know why: a switch has died, or a rank before the others were told of their admission.
      if (!unsealed_) unsealed_.emplace(site, supervisor_->unsealed(site, failure.operation, failure.what));
      sites_[site].beat_until = never;  // an answer in flight predates this
      next_beat_ = now;
      return;
    case protocol::LaneFailure::Kind::device:
    case protocol::LaneFailure::Kind::used_up:
      return fail(supervisor_->lane_failed(failure.operation, failure.what), now);
    case protocol::LaneFailure::Kind::changed_sum:
      return fail(supervisor_->changed_sum(site, failure.operation), now);
    case protocol::LaneFailure::Kind::unknown_job:
      supervisor_->on_job_dropped(site);
      sites_[site].beat_until = never;  // an answer in flight predates this
      next_beat_ = now;
  }
}

void Rank::dispute(std::size_t site, Error error, std::string own, Time now) {
  if (dispute_) return;
  dispute_.emplace(Dispute{site, std::move(error), std::move(own), now + beat_patience, false});
  sites_[site].beat_until = never;  // an answer in flight predates this
  next_beat_ = now;
}

void Rank::settle(const std::vector<RankCall>& stated, Time now) {
  std::string text = dispute_->error.what();
  ErrorDetails details = dispute_->error.details();
  if (!dispute_->own.empty()) {
    text += "; this is rank " + std::to_string(config_.rank) + ", with " + dispute_->own;
    details.calls.push_back({config_.rank, dispute_->own});
  }
  for (const RankCall& other : stated) {
    if (other.call == dispute_->own) continue;
    text += "; rank " + std::to_string(other.rank) + " called " + other.call;
    details.calls.push_back(other);
  }
  fail(Error(ErrorCode::mismatch, text, std::move(details)), now);
}

void Rank::beat(Time now) {
  const Pace pace = config_.straggler_deadline.count() != 0 && supervisor_ ? operations_.pace(now) : Pace();
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    Site& site = sites_[i];
    // Before all have admitted the rank, heartbeats are for the aggregator alone: no answer is waited for.
    if (!site.admission || site.admission->job_epoch == 0 || (site.beat_until != never && phase_ == Phase::running))
      continue;
    site.beat_until = now + beat_patience;
    const bool states = dispute_ && dispute_->site == i;
    if (states) dispute_->stated = true;
    actions_.emplace_back(Beat{
        i, {site.admission->job_epoch, site.admission->rank_epoch}, states ? dispute_->own : std::string(), seen_, pace});
  }
  next_beat_ = now + (dispute_ ? beat_dispute_interval : phase_ == Phase::running ? supervisor_->interval() : beat_interval);
}

void Rank::on_timer(Time now) {
  if (phase_ == Phase::ended) return;
  const Time meant = next_timeout();
  if (running() && dispute_ && now >= dispute_->until) return settle({}, now);
  if (supervisor_) {
    if (const auto late = operations_.overdue(now)) {
      const Error error = supervisor_->overdue(late->operation, late->call, late->patience,
                                               running() ? operations_.oldest_stall() : std::nullopt);
      if (!cause_) return end(error);
      // It waits for what ended the life before, unless that was itself.
      ErrorDetails details = cause_->details();
      std::erase(details.ranks, config_.rank);
      details.operation = late->operation;
      return end(Error(error.code(), std::string(error.what()) + "; the job could not continue after: " + cause_->what(),
                       std::move(details)));
    }
  }
  switch (phase_) {
    case Phase::waiting:
      if (now >= next_attempt_ || (set_aside_ && !pace_.calls && operations_.pace(now).calls)) try_again(now);
      break;
    case Phase::joining:
      if (now >= answer_by_) {
        const bool decided =
            std::any_of(sites_.begin(), sites_.end(), [](const Site& site) { return site.admission.has_value(); });
        for (const Site& site : sites_) {
          if (site.asked && decided) doubt(site.number, now);
        }
        cancel_joins();
        return fail(Error(ErrorCode::unreachable, "job '" + config_.job + "', rank " + std::to_string(config_.rank) +
                                                      ": the job did not become complete in time"),
                    now);
      }
      if (now >= next_beat_) beat(now);
      break;
    case Phase::running:
      for (std::size_t i = 0; i < sites_.size() && running(); ++i) {
        if (now >= sites_[i].beat_until) on_no_reply(i, "no answer", now);
      }
      if (running() && !dispute_) {
        if (const auto error = supervisor_->look(now, meant)) return fail(*error, now);
      }
      if (running()) look_for_missed(now);
      if (running() && now >= next_beat_) beat(now);
      break;
    case Phase::preparing:
    case Phase::starting:
    case Phase::ended:
      break;
  }
}

Time Rank::next_timeout() const {
  switch (phase_) {
    case Phase::waiting:
      return next_attempt_;
    case Phase::joining:
      return std::min(answer_by_, next_beat_);
    case Phase::running: {
      Time next = dispute_ ? std::min(next_beat_, dispute_->until) : next_beat_;
      for (const Site& site : sites_) next = std::min(next, site.beat_until);
      if (!dispute_) next = std::min(next, supervisor_->next_look());
      for (std::uint32_t number = 0; number < aggregators_.size(); ++number) {
        if (is_missed(number) && !aggregators_[number].looking) next = std::min(next, aggregators_[number].next_look);
      }
      if (past_switch_ && !switch_.looking) next = std::min(next, switch_.next_look);
      return next;
    }
    case Phase::preparing:
    case Phase::starting:
    case Phase::ended:
      break;
  }
  return never;
}

void Rank::let_in(Time now) {
  if (phase_ != Phase::running || knocking_.empty()) return;
  lets_in_ = true;
  fail(Error(ErrorCode::worker_lost, "job '" + config_.job + "' lets in " + name_ranks(knocking_)), now);
}

// ---- the end of an attempt, of a life, or of the rank

void Rank::fail(const Error& error, Time now) {
  if (error.code() == ErrorCode::excluded) return end(error);
  if (phase_ == Phase::running && config_.recovers && recoverable(error.code())) {
    doubt_silent(now);
    remember();
    cause_ = last_ = error;
    give_up_ = after(now, config_.recovery);
    actions_.emplace_back(Suspend{error, config_.recovery});
  } else if (cause_) {
    remember();
    last_ = error;
    actions_.emplace_back(Retry{error});
    // To those that have admitted this attempt: it does not go on. Who may do without this rank must not think that it has
    // left.
    if (config_.survivors == 0) say_goodbye(&error);
  } else {
    return end(error);
  }
  phase_ = Phase::waiting;
  next_attempt_ = after(now, config_.pause());
}

void Rank::try_again(Time now) {
  if (now >= give_up_) {
    return end(Error(*cause_, std::string(cause_->what()) + "; not all ranks joined again within " +
                                  in_seconds(config_.recovery) + ": " + last_.what()));
  }
  phase_ = Phase::preparing;
  if (config_.straggler_deadline.count() != 0) pace_ = operations_.pace(now);
  Prepare prepare{give_up_, true};
  for (std::uint32_t number = 0; number < aggregators_.size(); ++number) {
    if (now >= aggregators_[number].doubted_until) prepare.aggregators.push_back(config_.aggregators[number]);
  }
  if (prepare.aggregators.empty()) prepare.aggregators = config_.aggregators;
  tried_ = prepare.aggregators.size();
  prepare.past_switch = !config_.switch_address.empty() && now < switch_.doubted_until;
  actions_.emplace_back(std::move(prepare));
}

void Rank::end(const Error& error) {
  actions_.emplace_back(End{error});
  leave(&error);
}

void Rank::leave(const Error* why) {
  if (phase_ == Phase::joining) cancel_joins();
  phase_ = Phase::ended;
  say_goodbye(why);
}

void Rank::cancel_joins() {
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    if (std::exchange(sites_[i].asked, false)) actions_.emplace_back(Cancel{i});
  }
}

// Then the other ranks know that this one will not contribute, and has not just died.
void Rank::say_goodbye(const Error* why) {
  // What its own caller has closed has not failed. If others wait for this rank, the aggregator says so, with the reason.
  const bool in_order = why == nullptr || why->code() == ErrorCode::closed;
  const FailureCause cause = in_order             ? FailureCause::none
                             : ended_by_operator_ ? FailureCause::ended_by_operator
                                                  : cause_of(why->code());
  const Farewell farewell{cause, why == nullptr ? "" : why->what()};
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    if (!sites_[i].admission || sites_[i].admission->job_epoch == 0) continue;
    actions_.emplace_back(Leave{i, {sites_[i].admission->job_epoch, sites_[i].admission->rank_epoch}, farewell});
    sites_[i].admission.reset();
  }
}

void Rank::remember() {
  for (const Site& site : sites_) {
    if (site.admission && site.admission->job_epoch != 0) former_epochs_[site.address] = site.admission->rank_epoch;
  }
}

}  // namespace netsum::session
