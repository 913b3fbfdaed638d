#include "control/reports.h"

#include <algorithm>
#include <utility>

#include "base/waiting.h"

namespace netsum::control {
namespace {

constexpr std::size_t events_shown = 8;  // of each job

}  // namespace

telemetry::Report Reports::of_registry(session::Registry& registry, Time at, Depth depth) const {
  telemetry::Report out;
  out.slots = options_.registry.slots;
  out.slots_free = registry.slots_free();
  out.memory_bytes = registry.memory().limit();
  out.memory_used = registry.memory().used();
  out.draining = registry.draining();
  for (auto& job : registry.jobs()) {
    telemetry::JobReport& entry = out.jobs.emplace_back(telemetry::JobReport{.job = std::move(job)});
    flights_.add_to(entry, at, depth == Depth::whole ? events_shown : 0);
  }
  flights_.add_failures_to(out);
  if (depth == Depth::whole) flights_.add_ended_to(out, at);
  return out;
}

void Reports::complete(telemetry::Report& out, Time at, Depth depth) const {
  check_may_wait("the data plane's counters");
  out.counters.add("joins_refused", journal_.joins_refused());
  out.counters.add("wrong_tokens", journal_.wrong_tokens());
  if (depth == Depth::whole) {
    for (telemetry::JobReport& job : out.jobs) telemetry::locate(job);
  }
  std::erase_if(out.ended, [&](const telemetry::EndedJob& ended) {
    return ended.job_epoch != 0 && std::any_of(out.jobs.begin(), out.jobs.end(), [&](const telemetry::JobReport& job) {
             return job.job.job_epoch == ended.job_epoch;
           });
  });
  out.daemon = options_.switches.own;
  out.address = address_;
  out.certificate_until = std::chrono::duration<double>(certificate_until_.load().time_since_epoch()).count();
  out.threads = options_.threads;
  out.lanes = options_.registry.lanes;
  out.uptime_seconds = std::chrono::duration<double>(at - started_).count();
  if (hooks_.fill_report) hooks_.fill_report(out);
}

}  // namespace netsum::control
