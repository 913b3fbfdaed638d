#include "sim/verdict.h"

#include <algorithm>

#include "sim/tensors.h"

namespace netsum::sim {

Verdict::Verdict(const Scenario& scenario, bool names_missing)
    : scenario_(scenario), names_missing_(names_missing), jobs_failed_(scenario.jobs.size()) {
  for (const JobPlan& job : scenario.jobs) {
    ranks_.emplace_back(job.workers);
    results_.emplace_back(job.calls.size());
    members_.emplace_back();
  }
}

void Verdict::delivered(std::uint32_t job, std::uint32_t rank, const stream::Operation& call,
                        std::span<const std::byte> result, std::span<const std::uint64_t> epochs, const RankSet& summed) {
  if (!scenario_.checked) return;
  const JobPlan& plan = scenario_.jobs[job];
  const std::string what = plan.name + " rank " + std::to_string(rank) + ", operation " + std::to_string(call.number) +
                           " (" + stream::to_string(call) + ")";
  if (plan.mismatch && plan.mismatch->call.number == call.number)
    throw Violation(what + " ended in a result although a rank issued another call");
  if (plan.survivors != 0) return delivered_by_survivors(job, rank, call, result, epochs, summed, what);
  const std::set<std::vector<std::uint32_t>> groups = this->groups(job, epochs);
  if (groups.empty()) throw Violation(what + ": a result without a rank that has not begun");
  Result& known = results_[job][call.number];
  const bool same = known.bytes && std::equal(result.begin(), result.end(), known.bytes->begin(), known.bytes->end());
  const bool holds = plan.recovers ? !known.holders.empty() : known.bytes.has_value();
  known.holders.insert(rank);
  if (!same_everywhere(call)) {
    if (const std::string wrong = judge(plan, call, result, *groups.begin(), rank); !wrong.empty())
      throw Violation(what + ": " + wrong);
    return;
  }
  if (same) return;
  // Saturating sums are always within the bound, but whether they use the float values depends on the order of arrival.
  if (holds && (plan.recovers || !plan.saturating))
    throw Violation(what + ": the result differs from another rank's, or from an earlier attempt's");
  std::string wrong;
  const auto right = [&](const auto& processes) { return (wrong = judge(plan, call, result, processes)).empty(); };
  if (std::none_of(groups.begin(), groups.end(), right)) throw Violation(what + ": " + wrong);
  known.bytes.emplace(result.begin(), result.end());
}

bool Verdict::is_known(std::uint32_t job, std::uint32_t rank, std::vector<OfSet>& known, std::span<const std::byte> result,
                       std::span<const std::uint64_t> epochs, const RankSet& summed, const std::string& what) {
  const auto serving = std::find_if(epochs.begin(), epochs.end(), [](std::uint64_t epoch) { return epoch != 0; });
  const auto aggregator = static_cast<std::size_t>(serving - epochs.begin());
  const RankSet& members = members_[job].at(Life(aggregator, *serving)).expected;
  const auto same = [&](const OfSet& other) {
    return other.summed == summed && std::equal(result.begin(), result.end(), other.bytes.begin(), other.bytes.end());
  };
  for (const OfSet& other : known) {
    if (same(other)) continue;
    for (const std::uint32_t holder : other.holders) {
      // One that goes on in a later life may have another result, which this rank will never hear of.
      if (members.contains(holder) && lives_.at({job, holder}) <= lives_.at({job, rank}))
        throw Violation(what + ": the result differs from that of rank " + std::to_string(holder));
    }
  }
  const auto found = std::find_if(known.begin(), known.end(), same);
  if (found == known.end()) return false;
  found->holders.insert(rank);
  return true;
}

void Verdict::introduced(std::uint32_t job, std::uint32_t rank, std::uint64_t number, std::span<const std::byte> here_before,
                         std::span<const std::uint64_t> epochs, const RankSet& summed) {
  const std::string what =
      scenario_.jobs[job].name + " rank " + std::to_string(rank) + ", introduction " + std::to_string(number);
  std::vector<OfSet>& known = introductions_[{job, number}];
  if (!is_known(job, rank, known, here_before, epochs, summed, what))
    known.push_back({summed, {here_before.begin(), here_before.end()}, {rank}});
}

void Verdict::delivered_by_survivors(std::uint32_t job, std::uint32_t rank, const stream::Operation& call,
                                     std::span<const std::byte> result, std::span<const std::uint64_t> epochs,
                                     const RankSet& summed, const std::string& what) {
  std::vector<OfSet>& known = results_of_sets_[{job, call.number}];
  if (is_known(job, rank, known, result, epochs, summed, what)) return;
  std::string wrong = "it names other ranks than were in the job";
  const auto right = [&](const std::vector<std::uint32_t>& processes) {
    for (std::uint32_t other = 0; other < processes.size(); ++other) {
      if (summed.contains(other) == (processes[other] == absent)) return false;
    }
    return (wrong = judge(scenario_.jobs[job], call, result, processes)).empty();
  };
  const std::set<std::vector<std::uint32_t>> groups = this->groups(job, epochs);
  if (std::none_of(groups.begin(), groups.end(), right)) throw Violation(what + ": " + wrong);
  known.push_back({summed, {result.begin(), result.end()}, {rank}});
}

void Verdict::began(std::uint32_t job, std::uint32_t rank, std::span<const std::uint64_t> epochs, std::uint32_t process,
                    const RankSet& among, std::uint32_t life) {
  lives_[{job, rank}] = life;
  for (std::size_t aggregator = 0; aggregator < epochs.size(); ++aggregator) {
    if (epochs[aggregator] == 0) continue;
    auto& members = members_[job][Life(aggregator, epochs[aggregator])];
    members.processes.resize(scenario_.jobs[job].workers);
    members.processes[rank] = process;
    members.expected = among.empty() ? RankSet::first(scenario_.jobs[job].workers) : among;
  }
}

std::set<std::vector<std::uint32_t>> Verdict::groups(std::uint32_t job, std::span<const std::uint64_t> epochs) const {
  std::set<std::vector<std::uint32_t>> groups;
  for (std::size_t aggregator = 0; aggregator < epochs.size(); ++aggregator) {
    const auto life = members_[job].find(Life(aggregator, epochs[aggregator]));
    if (life == members_[job].end()) continue;
    std::vector<std::uint32_t> group;
    const Members& members = life->second;
    bool complete = true;
    for (std::uint32_t rank = 0; rank < members.processes.size(); ++rank) {
      const bool expected = members.expected.contains(rank);
      complete = complete && (!expected || members.processes[rank]);
      group.push_back(expected ? members.processes[rank].value_or(absent) : absent);
    }
    if (complete) groups.insert(std::move(group));
  }
  return groups;
}

void Verdict::forgot(std::uint32_t job, std::uint32_t rank) {
  for (Result& result : results_[job]) result.holders.erase(rank);
  for (auto* const kind : {&results_of_sets_, &introductions_}) {
    for (auto& [operation, results] : *kind) {
      if (operation.first != job) continue;
      for (OfSet& result : results) result.holders.erase(rank);
    }
  }
}

void Verdict::failed(std::uint32_t job, std::uint32_t rank, const Error& error) {
  if (!scenario_.checked) return;
  const JobPlan& plan = scenario_.jobs[job];
  const std::string text = error.what();
  const auto fail = [&](const std::string& why) {
    throw Violation(plan.name + " rank " + std::to_string(rank) + ": " + why + ": " + text);
  };
  const Profile profile = scenario_.settings.profile;
  const bool all_go_on = profile == Profile::none || profile == Profile::lossy || profile == Profile::lossy_lane ||
                         (profile == Profile::slow_rank && plan.straggler_deadline.count() == 0);
  if (all_go_on) fail("an error although no node failed");

  // That a rank is late, or has caught up, is nobody's fault. Another aggregator may say it first.
  if (plan.straggler_deadline.count() != 0 && error.code() != ErrorCode::excluded &&
      (text.find(" late") != std::string::npos || text.find("has joined again") != std::string::npos)) {
    return;
  }
  const std::vector<std::uint32_t> named = ranks_named(text);
  const auto disturbed = [&](std::uint32_t r) { return r < plan.workers && ranks_[job][r]; };
  // Processes that are started again may meet each other's ends.
  const bool first = erred_.insert({job, rank}).second || error.code() == ErrorCode::deadline;
  const auto& lasting = scenario_.lasting;
  // Behind one of several aggregators a rank joins again without it, and all others with it. Of values that pass switches
  // unsummed nobody says whose are missing.
  const bool unheard = lasting && lasting->reach == LastingFault::Reach::cable && lasting->outward;
  const bool elsewhere = lasting && lasting->reach == LastingFault::Reach::path && scenario_.aggregators > 1;
  const bool knows =
      unheard || (names_missing_ && !elsewhere && text.find("has no answer from aggregator") == std::string::npos);
  if (first && knows && lasting && lasting->kind == Fault::dead_link && lasting->job == job && lasting->rank != rank &&
      std::find(named.begin(), named.end(), lasting->rank) == named.end() &&
      text.find("which left the job: rank " + std::to_string(lasting->rank) + ":") == std::string::npos &&  // and why
      text.find("the job did not become complete in time") == std::string::npos) {
    fail("does not name the rank whose link is dead");
  }
  switch (error.code()) {
    case ErrorCode::mismatch: {
      if (!plan.mismatch || named.size() < 2 || named[0] == named[1]) fail("a mismatch that is none");
      const std::uint32_t odd = plan.mismatch->rank;
      if (named[0] != odd && named[1] != odd) fail("a mismatch that does not name the rank with the other call");
      break;
    }
    case ErrorCode::worker_lost:
      if (named.empty()) fail("a lost worker without a name");
      if (!std::all_of(named.begin(), named.end(), disturbed)) fail("names a rank to which nothing happened");
      break;
    case ErrorCode::aggregator_lost:
    case ErrorCode::aggregator_restarted:
      if (text.find("answers all ranks") != std::string::npos) break;  // not a blame; it may have answered a rank late
      // After a job has failed on all ranks, the aggregator forgets it. If control messages are lost, a switch that a job
      // needs may also appear not to answer, or not be told of the job for so long that it forgets the job with its sums.
      if (scenario_.links.control_loss > 0) {
        const auto says = [&](const char* what) { return text.find(what) != std::string::npos; };
        if (says("has not answered") || says("has lost its sums")) break;
      }
      if (!aggregators_ && !disturbed(rank) && !jobs_failed_[job]) fail("blames an aggregator to which nothing happened");
      break;
    case ErrorCode::deadline: {
      // Not whom, but why: it may have been silent itself.
      const std::vector<std::uint32_t> waited_for =
          ranks_named(text.substr(0, text.find("; the job could not continue after")));
      if (std::find(waited_for.begin(), waited_for.end(), rank) != waited_for.end()) fail("waits for itself");
      [[fallthrough]];
    }
    case ErrorCode::unreachable:
      // A rank that measures the path gives up after some probes; a network that loses most of them suffices.
      if (error.code() == ErrorCode::unreachable && plan.measured && profile == Profile::chaos) break;
      // A rank that did not reach all aggregators looks again.
      if (plan.recovers && scenario_.aggregators > 1 && text.find("did not become complete in time") != std::string::npos)
        break;
      if (!explained(job)) fail("a wait that nothing explains");
      break;
    case ErrorCode::excluded:
      if (named.empty() || named.front() != rank) fail("is told of another rank");
      if (text.find("is too late") != std::string::npos) break;  // its log is small
      if (!disturbed(rank)) fail("nothing happened to this rank, and it was declared dead");
      [[fallthrough]];
    case ErrorCode::refused:
      if (!explained(job) && !scenario_.scarce) fail("a refusal that nothing explains");
      break;
    default:
      fail("an error that should not come up");
  }
  jobs_failed_[job] = true;
  ranks_[job][rank] = true;
}

bool Verdict::explained(std::uint32_t job) const {
  const std::vector<bool>& ranks = ranks_[job];
  return aggregators_ || scenario_.jobs[job].mismatch || scenario_.jobs[job].impatient ||
         std::find(ranks.begin(), ranks.end(), true) != ranks.end();
}

std::vector<std::uint32_t> ranks_named(const std::string& whole) {
  // What a rank that left said is its own error's: it has been judged there.
  const std::string text = whole.substr(0, whole.find("which left the job:"));
  std::vector<std::uint32_t> ranks;
  const auto at = [&](std::size_t place, const std::string& word) { return text.compare(place, word.size(), word) == 0; };
  const auto digit = [&](std::size_t place) { return place < text.size() && text[place] >= '0' && text[place] <= '9'; };
  for (std::size_t place = text.find("rank"); place != std::string::npos; place = text.find("rank", place)) {
    // Not a cause: the reporting rank ("this is rank 2", "job 'x', rank 2:"), and the root of a call ("broadcast from rank
    // 1", "reduce to rank 1").
    const auto after = [&](const std::string& words) { return place >= words.size() && at(place - words.size(), words); };
    const bool cause = !after("this is ") && !after("', ") && !after("from ") && !after(" to ");
    place += at(place, "ranks ") ? 6 : 5;
    const auto number = [&] {
      std::uint32_t value = 0;
      for (; digit(place); ++place) value = value * 10 + static_cast<std::uint32_t>(text[place] - '0');
      return value;
    };
    while (digit(place)) {
      const std::uint32_t first = number();
      const bool range = at(place, "-") && digit(place + 1);
      if (range) ++place;
      const std::uint32_t last = range ? number() : first;
      for (std::uint32_t rank = first; cause && rank <= last; ++rank) ranks.push_back(rank);
      const std::size_t gap = at(place, ", ") ? 2 : at(place, " and ") ? 5 : 0;
      if (gap == 0 || !digit(place + gap)) break;
      place += gap;
    }
  }
  return ranks;
}

}  // namespace netsum::sim
