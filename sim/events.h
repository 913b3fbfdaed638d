// A protocol's counters as events of a tally: `prefix` and the counter's name.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/counter_list.h"
#include "sim/faults.h"
#include "wire/counter_values.h"

namespace netsum::sim {

// `without`: what no scenario leads to, or too few seeds; a run that asks for rare events (--least) asks for all others.
inline void count_events(Tally& tally, const std::string& prefix, const std::vector<CounterValue>& counters,
                         std::initializer_list<std::string_view> without = {}) {
  for (const CounterValue& counter : counters) {
    if (std::find(without.begin(), without.end(), counter.name) != without.end()) continue;
    tally.events[prefix + counter.name] += counter.value;
  }
}

}  // namespace netsum::sim
