// What a daemon keeps of its jobs' last moments: events as they come, looks at the jobs that run, and a file of each that
// failed.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>

#include "control/journal.h"
#include "session/job_event.h"
#include "telemetry/flight_file.h"
#include "telemetry/flight_recorder.h"
#include "telemetry/report.h"

namespace netsum::control {

// Any thread. Only write_failures() may wait, for the folder and the log.
class Flights {
 public:
  explicit Flights(Journal& journal) : journal_(journal) {}

  // Before anything else. Throws Error: bad_argument, nothing can be written there.
  void keep_files_in(const std::string& folder) { folder_.emplace(folder); }

  void record(const session::JobEvent& event);
  // Whether to look now; then the next look is due an interval later.
  [[nodiscard]] bool takes_look(Time at);
  [[nodiscard]] Time next_look() const;  // never: no job runs
  void look(const telemetry::Report& seen, Time at);

  // None: it was never here, or too many have ended since.
  [[nodiscard]] std::optional<telemetry::FlightRecord> find(const session::NamedJob& job) const;
  // Writes the records of jobs that failed since the last call. The log names them, as often as a tenant may have lines.
  void write_failures(const telemetry::FlightFileOrigin& origin);

  // For reports: a job's latest events, at most so many, and for how long it has waited.
  void add_to(telemetry::JobReport& job, Time at, std::size_t events) const;
  void add_ended_to(telemetry::Report& report, Time at) const;
  void add_failures_to(telemetry::Report& report) const;

 private:
  Journal& journal_;
  std::optional<telemetry::FlightFolder> folder_;
  mutable std::mutex mutex_;  // for all below
  telemetry::FlightRecorder recorder_;
  Time next_look_{};
};

}  // namespace netsum::control
