#include "session/supervisor.h"

#include <algorithm>
#include <utility>

#include "session/words.h"

namespace netsum::session {

namespace {

std::vector<std::uint32_t> listed(const RankSet& set) {
  std::vector<std::uint32_t> ranks;
  set.for_each([&](std::uint32_t rank) { ranks.push_back(rank); });
  return ranks;
}

}  // namespace

bool recoverable(ErrorCode code) {
  return code == ErrorCode::worker_lost || code == ErrorCode::aggregator_lost || code == ErrorCode::aggregator_restarted;
}

std::string disagreement(const Admission& first, const Admission& other) {
  if (!(other.resumption.members == first.resumption.members) || other.life != first.life) return "the ranks that continue";
  if (!(other.resumption == first.resumption)) return "the operation to continue with";
  if (!(other.sites == first.sites)) return "the aggregators that serve it";
  return other.packet_elements == first.packet_elements ? "" : "the packet length";
}

Supervisor::Supervisor(Config config, Time now)
    : config_(std::move(config)), sites_(config_.aggregators.size(), Site{Liveness(now)}) {}

std::optional<Error> Supervisor::on_reply(std::size_t index, const HeartbeatReply& reply, Time now) {
  Site& site = sites_[index];
  site.liveness.hear(now);
  const std::string at = "aggregator " + config_.aggregators[index];
  switch (reply.state) {
    case HeartbeatReply::State::unknown:
      return Error(ErrorCode::aggregator_restarted,
                   at + " no longer knows " + job() + ": it was restarted; start the job again (this is rank " +
                       std::to_string(config_.rank) + ")",
                   {.aggregator = config_.aggregators[index]});
    case HeartbeatReply::State::failed:
      return Error(reply.lost || reply.straggler ? ErrorCode::worker_lost
                   : reply.mismatch              ? ErrorCode::mismatch
                   : reply.ended_by_operator     ? ErrorCode::refused
                                                 : ErrorCode::aggregator_lost,
                   reply.reason + " (said by " + at + ")",
                   {.ranks = reply.lost ? std::vector{*reply.lost} : std::vector<std::uint32_t>{},
                    .aggregator = config_.aggregators[index]});
    case HeartbeatReply::State::running:
      break;
  }
  if (site.dropped) {
    return Error(ErrorCode::aggregator_restarted, at + " no longer serves " + job(),
                 {.aggregator = config_.aggregators[index]});
  }
  if (!reply.left.minus(left_).empty()) left_since_ = now;
  left_ = reply.left.united(left_);
  if (why_left_.empty()) why_left_ = reply.reason;
  site.missing = reply.missing;
  if (site.warning != reply.warning) {
    site.warning = reply.warning;
    site.warned = false;
  }
  return std::nullopt;
}

std::optional<std::string> Supervisor::take_warning(std::size_t index) {
  Site& site = sites_[index];
  if (std::exchange(site.warned, true)) return std::nullopt;
  const std::string said = " (said by aggregator " + config_.aggregators[index] + ")";
  return site.warning.empty() ? "all switches take part in " + job() + " again" + said : "warning: " + site.warning + said;
}

void Supervisor::on_no_reply(std::size_t index, const std::string& why, Time now, bool closed) {
  sites_[index].why = why;
  if (closed) sites_[index].liveness.close(now);
}

std::optional<Error> Supervisor::look(Time now, Time meant) {
  for (std::size_t index = 0; index < sites_.size(); ++index) {
    Site& site = sites_[index];
    site.liveness.look(now, meant);
    if (now < site.liveness.dead_at(config_.silence, config_.reconnect)) continue;
    return Error(ErrorCode::aggregator_lost,
                 "aggregator " + config_.aggregators[index] + (site.dropped ? " no longer serves this job, and" : "") +
                     " has not answered for " + in_seconds(silence(index, now)) + " (" + job() + ", rank " +
                     std::to_string(config_.rank) + "): " + (site.why.empty() ? "no answer" : site.why),
                 {.aggregator = config_.aggregators[index]});
  }
  return std::nullopt;
}

Time Supervisor::next_look() const {
  Time next = never;
  for (const Site& site : sites_) next = std::min(next, site.liveness.dead_at(config_.silence, config_.reconnect));
  return next;
}

Duration Supervisor::interval() const {
  const bool dropped = std::any_of(sites_.begin(), sites_.end(), [](const Site& site) { return site.dropped; });
  return dropped ? std::min(beat_retry_interval, config_.interval) : config_.interval;
}

std::optional<Stall> Supervisor::completed(std::optional<Stall> stall) const {
  if (!stall || !stall->missing.empty()) return stall;
  RankSet own;
  own.insert(config_.rank);  // this rank waits, like all others, for an earlier sum
  stall->missing = sites_[stall->site].missing.minus(own);
  if (config_.predecessor && left_.contains(*config_.predecessor)) stall->missing.insert(*config_.predecessor);
  stall->told = sites_[stall->site].liveness.heard();
  return stall;
}

std::optional<Error> Supervisor::check_left(const std::optional<Stall>& lane_stall) const {
  const std::optional<Stall> stall = completed(lane_stall);
  // The switch's report from before they left may be stale: they may have contributed, and left after the result.
  if (left_.empty() || !stall || stall->told < left_since_ + left_patience) return std::nullopt;
  const RankSet gone = stall->missing.in_both(left_);
  if (gone.empty()) return std::nullopt;
  return Error(ErrorCode::worker_lost,
               job() + ": operation " + std::to_string(stall->operation) + " waits for " + name_ranks(gone) +
                   ", which left the job: " + (why_left_.empty() ? "its own error says why" : why_left_),
               {.ranks = listed(gone), .operation = stall->operation});
}

Error Supervisor::mismatch(std::uint64_t operation, std::uint32_t first_rank, std::uint32_t second_rank) const {
  return Error(ErrorCode::mismatch,
               job() + ": ranks " + std::to_string(first_rank) + " and " + std::to_string(second_rank) +
                   " issued different calls as operation " + std::to_string(operation),
               {.ranks = {first_rank, second_rank}, .operation = operation});
}

Error Supervisor::overdue(std::uint64_t operation, const std::string& own, Duration patience,
                          const std::optional<Stall>& lane_stall) const {
  const std::optional<Stall> stall = completed(lane_stall);
  std::string text = job() + ", rank " + std::to_string(config_.rank) + ": operation " + std::to_string(operation) + " (" +
                     own + ") did not end within its " + in_seconds(patience);
  if (stall) {
    text += ": chunk " + std::to_string(stall->chunk) + " of operation " + std::to_string(stall->operation);
    text += stall->missing.empty() ? " has no answer from aggregator " + config_.aggregators[stall->site]
                                   : " waits for " + name_ranks(stall->missing);
    if (const std::string& warning = sites_[stall->site].warning; !warning.empty()) text += "; " + warning;
  }
  ErrorDetails details{.operation = operation};
  if (stall && stall->missing.empty()) details.aggregator = config_.aggregators[stall->site];
  if (stall) details.ranks = listed(stall->missing);
  return Error(ErrorCode::deadline, text, std::move(details));
}

Error Supervisor::unsealed(std::size_t site, std::uint64_t operation, const std::string& what) const {
  return Error(ErrorCode::aggregator_lost,
               job() + ", rank " + std::to_string(config_.rank) + ": operation " + std::to_string(operation) + ": " + what +
                   ": the network bypasses aggregator " + config_.aggregators[site] + ", or the aggregator was restarted",
               {.operation = operation, .aggregator = config_.aggregators[site]});
}

Error Supervisor::changed_sum(std::size_t site, std::uint64_t operation) const {
  const std::string& aggregator = config_.aggregators[site];
  return Error(ErrorCode::aggregator_lost,
               job() + ", rank " + std::to_string(config_.rank) + ": operation " + std::to_string(operation) +
                   ": a sum is not that of the ranks' values: aggregator " + aggregator +
                   ", or a host on the way, has changed it; do not use it for this job",
               {.operation = operation, .aggregator = aggregator});
}

Error Supervisor::lane_failed(std::uint64_t operation, const std::string& what) const {
  return Error(ErrorCode::aggregator_lost,
               job() + ", rank " + std::to_string(config_.rank) + ": operation " + std::to_string(operation) + ": " + what,
               {.operation = operation});
}

}  // namespace netsum::session
