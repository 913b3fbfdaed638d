// `netsum simulate --scenario FILE`: one experiment, and its report.
#pragma once

#include <functional>
#include <string>

#include "sim/experiment.h"

namespace netsum::app {

// Files that a run is to write; empty: none.
struct ScenarioFiles {
  std::string times;   // each operation's and rank's, as CSV
  std::string series;  // the scenario's, as CSV
  std::string pcap;    // datagrams, as they leave their senders
};

// `run` makes the report, which is printed on stdout as that of a level of this name. The exit code. May throw UsageError.
[[nodiscard]] int simulate_scenario(const std::string& path, const std::string& level, bool json,
                                    const std::function<sim::Report(const sim::Experiment&)>& run,
                                    const ScenarioFiles& files = {});
// `level`: "packet" or "flow".
[[nodiscard]] int simulate_scenario(const std::string& path, const std::string& level, bool json,
                                    const ScenarioFiles& files);

}  // namespace netsum::app
