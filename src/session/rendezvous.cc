#include "session/rendezvous.h"

#include <algorithm>

namespace netsum::session {

void Rendezvous::join(Call call, const JoinRequest& request, Time deadline, Time now) {
  const std::uint64_t ticket = registry_.join(request, now);
  joins_[call] = {ticket, deadline};
  calls_[ticket] = call;
  if (deadline != never) deadlines_.emplace(deadline, call);
}

bool Rendezvous::cancel(Call call, Time now) {
  const auto found = joins_.find(call);
  if (found == joins_.end()) return false;
  static_cast<void>(registry_.cancel_join(found->second.ticket, now));
  forget(found);
  return true;
}

void Rendezvous::forget(std::map<Call, Join>::iterator join) {
  deadlines_.erase({join->second.deadline, join->first});
  calls_.erase(join->second.ticket);
  joins_.erase(join);
}

HeartbeatReply Rendezvous::heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                                     const std::string& tenant, Time now, const std::string& call, const SiteSet& seen,
                                     const Pace& pace) {
  if (!registry_.belongs(job_epoch, tenant)) return {};
  HeartbeatReply reply = registry_.heartbeat(job_epoch, rank, rank_epoch, now, call, seen, pace);
  if (const auto view = views_.find(job_epoch); view != views_.end())
    reply.missing = registry_.members(job_epoch).at_places(view->second.missing);
  return reply;
}

void Rendezvous::leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, const std::string& tenant,
                       const Farewell& why, Time now) {
  if (registry_.belongs(job_epoch, tenant)) registry_.leave(job_epoch, rank, rank_epoch, why, now);
}

void Rendezvous::closed(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch, Time now) {
  registry_.closed(job_epoch, rank, rank_epoch, now);
}

void Rendezvous::on_timer(Time now) {
  if (now >= registry_.next_timeout()) registry_.on_timer(now);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const auto found = joins_.find(deadlines_.begin()->second);
    if (registry_.look_at_outcome(found->second.ticket) != nullptr) {
      deadlines_.erase(deadlines_.begin());  // already admitted or refused: that answer is next
      continue;
    }
    late_.push_back({found->first, true, registry_.cancel_join(found->second.ticket, now), {}});
    forget(found);
  }
}

Rendezvous::Step Rendezvous::step(Time now, const std::function<bool(std::uint64_t)>& ready) {
  Step step{take_changes(registry_), std::exchange(late_, {}), registry_.take_events()};
  for (const std::uint64_t ticket : registry_.decided()) {
    const auto call = calls_.find(ticket);
    if (call == calls_.end()) continue;
    const JoinOutcome* const decided = registry_.look_at_outcome(ticket);
    if (decided->admission && !stopping_) {
      const std::uint64_t epoch = decided->admission->job_epoch;
      // A rank learns that its job has ended meanwhile from its first heartbeat.
      if (registry_.is_running(epoch) && (!running_.contains(epoch) || !ready(epoch))) continue;
    }
    auto outcome = registry_.join_outcome(ticket);
    if (outcome->admission) registry_.admission_told(outcome->admission->job_epoch, now);
    step.answers.push_back({call->second, false, {}, std::move(*outcome)});
    forget(joins_.find(call->second));
  }
  return step;
}

void Rendezvous::shut_down(Time now) {
  stopping_ = true;
  registry_.shut_down(now);
}

void Rendezvous::on_started(const StartJob& start) {
  running_[start.admission.job_epoch] = start.watched;
}

void Rendezvous::on_start_failed(std::uint64_t job_epoch, const std::string& reason, Time now) {
  registry_.start_failed(job_epoch, reason, now);
}

void Rendezvous::on_stopped(std::uint64_t job_epoch) {
  running_.erase(job_epoch);
  views_.erase(job_epoch);
}

void Rendezvous::on_view(std::uint64_t job_epoch, JobView view, Time now) {
  if (!view.mismatch.empty()) {
    const RankSet members = registry_.members(job_epoch);
    const auto named = [&](std::uint32_t place) {
      return std::to_string(place < members.size() ? members.at_place(place) : place);
    };
    registry_.fail_mismatch(
        job_epoch, "ranks " + named(view.first_rank) + " and " + named(view.second_rank) + " " + view.mismatch, now);
  }
  if (!view.hopeless.empty()) registry_.fail(job_epoch, view.hopeless, now);
  if (running_.contains(job_epoch)) views_[job_epoch] = std::move(view);
}

Time Rendezvous::next_timeout() const {
  const Time next = registry_.next_timeout();
  return deadlines_.empty() ? next : std::min(next, deadlines_.begin()->first);
}

std::vector<std::uint64_t> Rendezvous::watched() const {
  std::vector<std::uint64_t> epochs;
  for (const auto& [epoch, is_watched] : running_) {
    if (is_watched) epochs.push_back(epoch);
  }
  return epochs;
}

}  // namespace netsum::session
