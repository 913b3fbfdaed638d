// `netsum simulate --scenario FILE`: one experiment, and its report.
#pragma once

#include <functional>
#include <string>

#include "sim/experiment.h"

namespace netsum::app {

// `run` makes the report, which is printed on stdout as that of a level of this name. The exit code. May throw UsageError.
[[nodiscard]] int simulate_scenario(const std::string& path, const std::string& level, bool json,
                                    const std::function<sim::Report(const sim::Experiment&)>& run,
                                    const std::string& times = "");
// `level`: "packet" or "flow". `times`: a file for each rank's times; empty: none.
[[nodiscard]] int simulate_scenario(const std::string& path, const std::string& level, bool json, const std::string& times);

}  // namespace netsum::app
