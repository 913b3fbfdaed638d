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
  double uptime_seconds = 0;
  std::uint32_t lanes = 0, slots = 0, slots_free = 0;
  std::uint64_t memory_bytes = 0, memory_used = 0;  // for jobs: limit, and used
  Counters counters;                                // of the whole aggregator
  std::vector<JobReport> jobs;
};

[[nodiscard]] std::string to_json(const Report& report);
[[nodiscard]] Report from_json(const std::string& text);  // throws Error: internal, if the text is no report
[[nodiscard]] std::string to_table(const Report& report);

}  // namespace netsum::telemetry
