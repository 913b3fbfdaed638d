// Tables of models' layers (examples/workloads).
#pragma once

#include <string>

#include "sim/workload.h"

namespace netsum::app {

// The model of that name. `iteration`: "GPU" of the file's times, or empty: the first. Throws UsageError.
[[nodiscard]] sim::Workload read_workload(const std::string& path, const std::string& model, const std::string& gpu);

}  // namespace netsum::app
