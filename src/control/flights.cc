#include "control/flights.h"

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

namespace netsum::control {

void Flights::record(const session::JobEvent& event) {
  const std::lock_guard lock(mutex_);
  recorder_.record(event);
}

bool Flights::takes_look(Time at) {
  const std::lock_guard lock(mutex_);
  if (at < next_look_) return false;
  next_look_ = at + telemetry::FlightRecorder::look_interval;
  return recorder_.any_running();
}

Time Flights::next_look() const {
  const std::lock_guard lock(mutex_);
  return recorder_.any_running() ? next_look_ : never;
}

void Flights::look(const telemetry::Report& seen, Time at) {
  const std::lock_guard lock(mutex_);
  for (const telemetry::JobReport& job : seen.jobs) recorder_.look(job, at);
}

std::optional<telemetry::FlightRecord> Flights::find(const session::NamedJob& job) const {
  const std::lock_guard lock(mutex_);
  return recorder_.find(job);
}

void Flights::write_failures(const telemetry::FlightFileOrigin& origin) {
  std::vector<telemetry::FlightRecord> failures;
  {
    const std::lock_guard lock(mutex_);
    failures = recorder_.take_failures();
  }
  if (!folder_) return;
  for (const telemetry::FlightRecord& record : failures) {
    if (!journal_.may_say_more(record.tenant)) continue;
    try {
      const std::string file = folder_->write(record, origin);
      journal_.log("job '" + record.job + "': to see what happened, run `netsum explain " + file + "`");
    } catch (const std::exception& error) {
      journal_.log(std::string("warning: ") + error.what());
    }
  }
}

void Flights::add_to(telemetry::JobReport& job, Time at, std::size_t events) const {
  const std::lock_guard lock(mutex_);
  if (events != 0) {
    for (telemetry::FlightEvent& event : recorder_.latest(job.job, events)) {
      const double age = std::chrono::duration<double>(at - event.at).count();
      job.events.push_back({age, std::move(event.kind), event.rank, std::move(event.what)});
    }
  }
  job.stalled_seconds = std::chrono::duration<double>(recorder_.stalled_for(job.job, at)).count();
}

void Flights::add_ended_to(telemetry::Report& report, Time at) const {
  const std::lock_guard lock(mutex_);
  report.ended = recorder_.ended(at);
}

void Flights::add_failures_to(telemetry::Report& report) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, value] : recorder_.failures()) report.counters.add(name, value);
}

}  // namespace netsum::control
