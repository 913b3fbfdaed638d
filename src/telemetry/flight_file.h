// Records of jobs that failed, as files: written by a daemon, explained by `netsum explain`.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/time.h"
#include "telemetry/flight_recorder.h"

namespace netsum::telemetry {

struct FlightFileOrigin {
  std::string version, daemon, address;             // as in Report
  std::chrono::system_clock::time_point written{};  // the same moment
  Time now{};                                       // as `written`
};

// docs/operate-failures.md describes it.
[[nodiscard]] std::string to_json(const FlightRecord& record, const FlightFileOrigin& origin);

// What happened, whom the job waited for, and what to do: text for people. `json`: of to_json(), from anywhere. Throws
// Error: bad_argument, if it is none.
[[nodiscard]] std::string explain(const std::string& json);

// The same record, of which nothing but ASCII reaches a terminal.
[[nodiscard]] std::string printable_record(const std::string& json);

// A folder of such files, of which the newest of each tenant stay.
class FlightFolder {
 public:
  // Makes the folder where there is none. Throws Error: bad_argument, if nothing can be written there.
  explicit FlightFolder(std::string path, std::size_t most_files = 100);
  // The file's path. Throws Error: internal.
  std::string write(const FlightRecord& record, const FlightFileOrigin& origin) const;

 private:
  std::string path_;
  std::size_t most_files_;
};

}  // namespace netsum::telemetry
