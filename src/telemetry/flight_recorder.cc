#include "telemetry/flight_recorder.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "session/words.h"
#include "telemetry/rates.h"

namespace netsum::telemetry {
namespace {

using session::FailureCause;
using session::JobEvent;
using session::JobReport;

constexpr Duration stalled_after = std::chrono::seconds(1);
// A lossy network: for one in so many packets a result was sent again since the last look, and at least so many were.
constexpr std::uint64_t lossy_share = 100, lossy_least = 10;

const char* name_of(JobEvent::Kind kind) {
  switch (kind) {
    case JobEvent::Kind::joined:
      return "joined";
    case JobEvent::Kind::gave_up:
      return "gave_up";
    case JobEvent::Kind::rank_refused:
      return "rank_refused";
    case JobEvent::Kind::refused:
      return "refused";
    case JobEvent::Kind::started:
      return "started";
    case JobEvent::Kind::left:
      return "left";
    case JobEvent::Kind::failed:
      return "failed";
    case JobEvent::Kind::ended:
      return "ended";
  }
  return "?";
}

RankSet rank_set(const std::vector<std::uint32_t>& ranks) {
  RankSet set;
  for (const std::uint32_t rank : ranks) set.insert(rank);
  return set;
}

std::string chunk_in_words(const JobReport::Stalled& chunk) {
  std::string text = "operation " + std::to_string(chunk.operation) + ", chunk " + std::to_string(chunk.chunk);
  return chunk.missing.empty() ? text : text + " waits for " + session::name_ranks(rank_set(chunk.missing));
}

bool same_chunk(const JobReport::Stalled& a, const JobReport::Stalled& b) {
  return a.operation == b.operation && a.chunk == b.chunk;
}

// Where ranks are does not change in a job's life.
void keep(FlightRecord& record, const JobReport& job) {
  JobReport looked = job;
  if (record.looked) {
    looked.hosts = std::move(record.looked->hosts);
    looked.switches = std::move(record.looked->switches);
  } else if (looked.hosts.empty()) {
    locate(looked);
  }
  looked.job.endpoints.clear();
  looked.job.endpoints.shrink_to_fit();
  looked.job.processes.clear();
  looked.job.processes.shrink_to_fit();
  looked.job.placement = {};
  record.looked = std::move(looked);
}

// What a dropped packet's counter says of the job, where that is no everyday matter.
bool alarming(const std::string& name) {
  return name.starts_with("dropped_") && name != "dropped_old" && name != "dropped_early";
}

}  // namespace

const char* name_of(FailureCause cause) {
  constexpr const char* names[] = {
      "none",          "silent",      "died",    "gave_up", "left",     "mismatch",        "started_again",
      "shutting_down", "not_started", "refused", "other",   "deadline", "aggregator_lost", "operator",
      "straggler"};
  static_assert(std::size(names) == static_cast<std::size_t>(session::last_cause) + 1);
  return names[static_cast<std::size_t>(cause)];
}

void FlightRecorder::add(FlightRecord& record, FlightEvent event) const {
  record.events.push_back(std::move(event));
  if (record.events.size() <= limits_.events) return;
  record.events.pop_front();
  ++record.omitted;
}

void FlightRecorder::record(const JobEvent& event) {
  auto kept = kept_.find({event.tenant, event.job});
  if (kept == kept_.end()) {
    if (kept_.size() >= limits_.jobs) {
      if (event.cause != FailureCause::none) ++failures_[static_cast<std::size_t>(event.cause)];  // without a record
      return;
    }
    kept = kept_.try_emplace({event.tenant, event.job}).first;
    kept->second.record.job = event.job;
    kept->second.record.tenant = event.tenant;
    kept->second.record.began = event.at;
  }
  Kept& job = kept->second;
  FlightRecord& record = job.record;
  record.world_size = event.world_size;
  if (event.job_epoch != 0) record.job_epoch = event.job_epoch;
  std::string what = event.what;
  if (event.kind == JobEvent::Kind::left && event.rank) {
    job.left.insert(*event.rank);
    const auto& stall = job.stall;
    if (stall && stall->told && rank_set(stall->chunk.missing).contains(*event.rank)) {
      job.deserters.insert(*event.rank);
      what = "while operation " + std::to_string(stall->chunk.operation) + " waited for it";
    }
  }
  add(record, {event.at, name_of(event.kind), event.rank, what});
  if (!session::is_end(event.kind)) return;
  JobEvent failure = event;
  // The ranks that waited left for this reason: their words are less plain.
  const bool deserted = event.kind == JobEvent::Kind::ended || event.cause == FailureCause::left;
  if (!deserted || (job.deserters.empty() && event.kind != JobEvent::Kind::ended)) return fail(kept, failure);
  if (job.deserters.empty()) {
    record.ended = event.at;
    keep_ended(std::move(record));
    kept_.erase(kept);
    return;
  }
  failure.cause = FailureCause::left;
  failure.rank = job.deserters.front();
  failure.what = session::name_ranks(job.deserters) + " of job '" + event.job + "' left while others waited for " +
                 (job.deserters.size() == 1 ? "it" : "them");
  fail(kept, failure);
}

void FlightRecorder::fail(std::map<Key, Kept>::iterator kept, const JobEvent& event) {
  FlightRecord record = std::move(kept->second.record);
  kept_.erase(kept);
  record.ended = event.at;
  record.cause = event.cause;
  record.failure = event.what;
  record.lost = event.rank;
  ++failures_[static_cast<std::size_t>(event.cause)];
  failed_.push_back(std::move(record));
  if (failed_.size() > limits_.failures) failed_.pop_front();
}

void FlightRecorder::look(const JobReport& job, Time now) {
  if (job.job.job_epoch == 0) return;
  const auto kept = kept_.find({job.job.tenant, job.job.job});
  if (kept != kept_.end() && kept->second.record.job_epoch == job.job.job_epoch) {
    look_at_stalls(kept->second, job, now);
    look_at_counters(kept->second, job, now);
    keep(kept->second.record, job);
  }
  for (FlightRecord& record : failed_) {
    if (record.job_epoch == job.job.job_epoch) keep(record, job);
  }
}

void FlightRecorder::look_at_stalls(Kept& kept, const JobReport& job, Time now) const {
  auto& stall = kept.stall;
  const JobReport::Stalled* const oldest = job.stalled.empty() ? nullptr : &job.stalled.front();
  if (stall && (oldest == nullptr || !same_chunk(*oldest, stall->chunk))) {
    if (stall->told) {
      add(kept.record,
          {now,
           "went_on",
           {},
           "operation " + std::to_string(stall->chunk.operation) + " after " + session::in_seconds(now - stall->since)});
    }
    stall.reset();
  }
  if (oldest == nullptr) return;
  if (!stall) {
    stall = {*oldest, now, false};
  } else if (stall->told ? stall->chunk.missing != oldest->missing : now - stall->since >= stalled_after) {
    add(kept.record, {now, "stalled", {}, chunk_in_words(*oldest)});
    stall->told = true;
  }
  stall->chunk.missing = oldest->missing;
  // A rank that has left answers no more: nothing will come of it.
  const RankSet missing = rank_set(oldest->missing);
  const RankSet gone = missing.in_both(kept.left).minus(kept.deserters);
  if (gone.empty() || now == stall->since) return;
  kept.deserters = kept.deserters.united(gone);
  add(kept.record, {now, "deserted", gone.front(), chunk_in_words(*oldest) + ", which left before"});
}

void FlightRecorder::look_at_counters(Kept& kept, const JobReport& job, Time now) const {
  if (!kept.record.looked) return;
  const Counters& before = kept.record.looked->counters;
  for (const auto& [name, value] : job.counters) {
    if (alarming(name) && value != 0 && before.value(name) == 0) {
      add(kept.record, {now, "dropped", {}, name + " is " + std::to_string(value) + ", for the first time"});
    }
  }
  const std::uint64_t again = repeated_of(job.counters) - std::min(repeated_of(before), repeated_of(job.counters));
  const std::uint64_t sent =
      job.counters.value("packets") - std::min(before.value("packets"), job.counters.value("packets"));
  const bool lossy = again >= lossy_least && again * lossy_share >= sent;
  if (lossy && !kept.lossy) {
    char share[32];
    std::snprintf(share, sizeof share, "%.1f %%",
                  100.0 * static_cast<double>(again) / static_cast<double>(std::max(sent, again)));
    add(kept.record, {now, "lossy", {}, std::string(share) + " of the packets were answered again since the last look"});
  } else if (kept.lossy && again == 0) {
    add(kept.record, {now, "lossless", {}, "no packet was answered again since the last look"});
  }
  kept.lossy = lossy || (kept.lossy && again != 0);
}

std::vector<FlightRecord> FlightRecorder::take_failures() {
  std::vector<FlightRecord> failures;
  for (FlightRecord& record : std::exchange(failed_, {})) {
    keep_ended(record);
    failures.push_back(std::move(record));
  }
  return failures;
}

// One more pushes out the oldest of those whose tenant has the most: nobody's failures hide another's.
void FlightRecorder::keep_ended(FlightRecord record) {
  ended_.push_back(std::move(record));
  if (ended_.size() <= limits_.ended) return;
  std::map<std::string, std::size_t> of_tenant;
  std::size_t most = 0;
  for (const FlightRecord& each : ended_) most = std::max(most, ++of_tenant[each.tenant]);
  ended_.erase(
      std::find_if(ended_.begin(), ended_.end(), [&](const FlightRecord& each) { return of_tenant[each.tenant] == most; }));
}

std::optional<FlightRecord> FlightRecorder::find(const session::NamedJob& named) const {
  const FlightRecord* latest = nullptr;
  const auto look = [&](const FlightRecord& record) {
    if (record.job != named.job || (named.tenant && record.tenant != *named.tenant)) return;
    if (latest == nullptr || record.began >= latest->began) latest = &record;
  };
  for (const FlightRecord& record : ended_) look(record);
  for (const FlightRecord& record : failed_) look(record);
  for (const auto& [key, kept] : kept_) look(kept.record);
  return latest == nullptr ? std::nullopt : std::optional(*latest);
}

std::vector<EndedJob> FlightRecorder::ended(Time now) const {
  const auto seconds = [](Duration duration) { return std::chrono::duration<double>(duration).count(); };
  std::vector<EndedJob> all;
  for (const std::deque<FlightRecord>* const list : {&ended_, &failed_}) {
    for (const FlightRecord& record : *list) {
      EndedJob& ended = all.emplace_back();
      ended.job = record.job;
      ended.tenant = record.tenant;
      ended.job_epoch = record.job_epoch;
      ended.world_size = record.world_size;
      ended.cause = name_of(record.cause);
      ended.failure = record.failure;
      ended.rank = record.lost;
      ended.age_seconds = seconds(now - *record.ended);
      ended.lasted_seconds = seconds(*record.ended - record.began);
      if (!record.looked) continue;
      ended.protocol = record.looked->job.protocol;
      if (record.lost) ended.place = place_of(*record.looked, *record.lost);
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const EndedJob& a, const EndedJob& b) {
    return a.failure.empty() != b.failure.empty() ? b.failure.empty() : a.age_seconds < b.age_seconds;
  });
  return all;
}

Counters FlightRecorder::failures() const {
  Counters counters{{"jobs_failed", std::accumulate(failures_.begin(), failures_.end(), std::uint64_t{0})}};
  for (std::size_t cause = 1; cause < failures_.size(); ++cause) {
    counters.add(std::string("jobs_failed_") + name_of(static_cast<FailureCause>(cause)), failures_[cause]);
  }
  return counters;
}

std::vector<FlightEvent> FlightRecorder::latest(const session::JobStatus& job, std::size_t most) const {
  const auto tail = [&](const FlightRecord& record) {
    const auto& events = record.events;
    return std::vector<FlightEvent>(events.end() - static_cast<std::ptrdiff_t>(std::min(most, events.size())), events.end());
  };
  const auto kept = kept_.find({job.tenant, job.job});
  if (kept != kept_.end() && kept->second.record.job_epoch == job.job_epoch) return tail(kept->second.record);
  for (const std::deque<FlightRecord>* const list : {&failed_, &ended_}) {
    for (const FlightRecord& record : *list) {
      if (record.job_epoch == job.job_epoch && record.job == job.job && record.tenant == job.tenant) return tail(record);
    }
  }
  return {};
}

Duration FlightRecorder::stalled_for(const session::JobStatus& job, Time now) const {
  const auto kept = kept_.find({job.tenant, job.job});
  if (kept == kept_.end() || kept->second.record.job_epoch != job.job_epoch) return {};
  const auto& stall = kept->second.stall;
  return stall && stall->told ? now - stall->since : Duration();
}

bool FlightRecorder::any_running() const {
  return std::any_of(kept_.begin(), kept_.end(), [](const auto& kept) { return kept.second.record.job_epoch != 0; });
}

}  // namespace netsum::telemetry
