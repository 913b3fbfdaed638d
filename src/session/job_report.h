// A job as an aggregator's lanes see it: its counters, and the chunks that wait for ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/counters.h"
#include "session/registry.h"

namespace netsum::session {

struct JobReport {
  JobStatus job;
  Counters counters;
  struct Stalled {
    std::uint64_t operation;
    std::uint32_t chunk, slot;
    std::vector<std::uint32_t> missing;
  };
  std::vector<Stalled> stalled;  // oldest first, a few
};

}  // namespace netsum::session
