// A complete cluster in one thread under a virtual clock: hosts, the network between them, and faults, from one scenario.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "sim/faults.h"
#include "sim/scenario.h"

namespace netsum::sim {

struct Outcome {
  std::string failure;  // empty: no violation
  Tally tally;
  std::uint64_t trace_hash = 0;
  double turns_of_window = 0;  // of the busiest job: chunks of its operations over its slots
};

class Protocol;

struct RunOptions {
  std::ostream* text = nullptr;  // the events, one per line
  std::ostream* pcap = nullptr;
  const Protocol* protocol = nullptr;  // null: the scenario's
};

// Runs until every rank has ended.
[[nodiscard]] Outcome run(const Scenario& scenario, const RunOptions& options = {});

}  // namespace netsum::sim
