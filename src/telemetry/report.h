// An aggregator's report: for `netsum status` as a table or JSON, for Prometheus as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/counters.h"
#include "session/job_report.h"

namespace netsum::telemetry {

using netsum::Counters;
using session::JobReport;

struct Report {
  std::string version;
  std::string daemon, address;  // what it is ("aggregator", "parameter server", "bump"), and where it listens; may be empty
  double uptime_seconds = 0;
  std::uint32_t lanes = 0, slots = 0, slots_free = 0;
  std::uint64_t memory_bytes = 0, memory_used = 0;  // for jobs: limit, and used
  Counters counters;                                // of the whole aggregator
  std::vector<JobReport> jobs;
};

// docs/operations.md describes it. On one line if `compact`.
[[nodiscard]] std::string to_json(const Report& report, bool compact = false);
[[nodiscard]] Report from_json(const std::string& text);  // throws Error: internal, if the text is no report
[[nodiscard]] std::string to_table(const Report& report);

[[nodiscard]] const char* state_of(const session::JobStatus& job);  // "joining", "running", "failed"
// "operation 14, chunk 0 (slot 2) waits for rank 1", in the words of the job's data plane.
[[nodiscard]] std::string in_words(const JobReport& job, const JobReport::Stalled& stalled);
// Fills in hosts and switches from the job's status.
void locate(JobReport& job);

}  // namespace netsum::telemetry
