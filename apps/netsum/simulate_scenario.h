// `netsum simulate --scenario FILE`: one experiment, and its report.
#pragma once

#include <string>

namespace netsum::app {

// `level`: "packet" or "flow". The exit code; prints on stdout. May throw UsageError.
[[nodiscard]] int simulate_scenario(const std::string& path, const std::string& level, bool json);

}  // namespace netsum::app
