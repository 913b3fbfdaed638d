// Reduces a failing seed to a small scenario that still fails.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sim/cluster.h"
#include "sim/scenario.h"

namespace netsum::sim {

struct Shrunk {
  Limits limits;
  std::string failure;     // of the small scenario
  std::uint32_t runs = 0;  // runs used
};

// `settings` must fail with `seed`. Removes jobs, aggregators, lanes, workers, operations, elements, slots, kinds of faults,
// and then single faults, until nothing more can be removed or `most_runs` are used up.
using Runner = std::function<Outcome(const Scenario&)>;
[[nodiscard]] Shrunk shrink(
    const Settings& settings, std::uint64_t seed, std::uint32_t most_runs = 400,
    const Runner& runner = [](const Scenario& scenario) { return run(scenario); });

}  // namespace netsum::sim
