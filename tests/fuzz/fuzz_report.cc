// An aggregator's report, as `netsum status` receives it: an error, or one that is written again as it was read.
#include <string>

#include "fuzz/harness.h"
#include "netsum/error.h"
#include "telemetry/report.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
  telemetry::Report report;
  try {
    report = telemetry::from_json(std::string(data, data + size));
  } catch (const Error& error) {
    fuzz::check(error.code() == ErrorCode::internal, "a report that is none");
    return 0;
  }
  const std::string json = telemetry::to_json(report);
  fuzz::check(telemetry::to_json(telemetry::from_json(json)) == json, "a report is read as it is written");
  fuzz::check(!telemetry::to_table(report).empty(), "a report has a table");
  return 0;
}
