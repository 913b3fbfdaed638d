// Scenario files: an experiment for the simulator, in TOML. docs/simulator.md has all keys.
#pragma once

#include <string>

#include "config.h"
#include "sim/experiment.h"
#include "toml.h"

namespace netsum::app {

// Throws UsageError, which names the file, the line and the key.
[[nodiscard]] sim::Experiment read_scenario(const std::string& path);
// `path`: for messages, and where a relative path to workloads begins.
[[nodiscard]] sim::Experiment parse_scenario(const std::string& text, const std::string& path);

// The same, from what the file holds.
[[nodiscard]] sim::Experiment scenario_of(const TomlTable& root, const std::string& path);

// An error at a key of a file that was one: "output.series", "job[0].wire".
[[nodiscard]] UsageError error_in_scenario(const std::string& path, const std::string& key, const std::string& what);

}  // namespace netsum::app
