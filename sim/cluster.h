// A whole cluster in one thread under a virtual clock: hosts, the network between them, and faults, from one scenario.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "sim/faults.h"
#include "sim/scenario.h"

namespace netsum::sim {

struct Outcome {
  std::string failure;  // empty: everything held
  Tally tally;
  std::uint64_t trace_hash = 0;
  double turns_of_window = 0;  // of the busiest job: chunks of its operations over its slots
};

// Runs until every rank has ended. `text` and `pcap` may be null.
[[nodiscard]] Outcome run(const Scenario& scenario, std::ostream* text = nullptr, std::ostream* pcap = nullptr);

}  // namespace netsum::sim
