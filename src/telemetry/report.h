// An aggregator's report: for `netsum status` as a table or JSON, for Prometheus as text.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/counters.h"
#include "session/job_report.h"
#include "transport/addresses/attachments.h"

namespace netsum::telemetry {

using netsum::Counters;
using session::JobReport;

// A job that has ended.
struct EndedJob {
  std::string job, tenant;
  std::uint64_t job_epoch = 0;  // 0: it never ran
  std::uint32_t world_size = 0;
  std::string protocol;                 // empty: unknown
  std::string cause, failure;           // "none", "": it ended in good order
  std::optional<std::uint32_t> rank{};  // whose fault it was
  std::string place;                    // of that rank, in words; empty: unknown
  double age_seconds = 0;               // since its end
  double lasted_seconds = 0;
};

struct Report {
  std::string version;
  std::string daemon, address;  // what it is ("aggregator", "parameter server", "bump"), and where it listens; may be empty
  double uptime_seconds = 0;
  std::uint32_t threads = 0, lanes = 0, slots = 0, slots_free = 0;
  std::uint64_t memory_bytes = 0, memory_used = 0;  // for jobs: limit, and used
  Counters counters;                                // of the whole aggregator
  std::vector<JobReport> jobs;
  std::vector<EndedJob> ended{};  // that are no longer among `jobs`: those that failed first, and then the latest first
  double certificate_until = 0;   // the end of its certificate, in seconds since 1970; 0: it has none
  bool draining = false;          // it admits no new jobs
  std::vector<transport::Attachment> interfaces{};  // where packets pass before the kernel has them
};

// docs/operate-watch.md describes it. On one line if `compact`.
[[nodiscard]] std::string to_json(const Report& report, bool compact = false);
[[nodiscard]] Report from_json(const std::string& text);  // throws Error: internal, if the text is no report
[[nodiscard]] std::string to_table(const Report& report);

[[nodiscard]] const char* state_of(const session::JobStatus& job);  // "joining", "running", "failed"
// "operation 14, chunk 0 (slot 2) waits for rank 1", in the words of the job's data plane.
[[nodiscard]] std::string in_words(const JobReport& job, const JobReport::Stalled& stalled);
// As people look for them.
[[nodiscard]] std::vector<const JobReport*> failed_first(const std::vector<JobReport>& jobs);
// What a tenant may see of it.
[[nodiscard]] Report visible_to(const std::string& tenant, const Report& report);
[[nodiscard]] bool has_job(const Report& report, const session::NamedJob& named);
// "ended in good order", or why not, where and when.
[[nodiscard]] std::string in_words(const EndedJob& ended);
// "10.0.0.4, node7, process 4711"; empty: unknown.
[[nodiscard]] std::string place_of(const JobReport& job, std::uint32_t rank);
[[nodiscard]] std::string place_in_words(const std::string& address, const std::string& name, std::uint64_t process);
// A job's hosts as JSON, in reports and records.
[[nodiscard]] nlohmann::ordered_json hosts_json(const std::vector<JobReport::Host>& hosts);
// Fills in hosts and switches from the job's status.
void locate(JobReport& job);

}  // namespace netsum::telemetry
