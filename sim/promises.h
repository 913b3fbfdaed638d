// What must still complete in a cluster with a fault that never heals, and by when (docs/testing.md#faults-that-never-heal).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "sim/protocol.h"
#include "sim/scenario.h"

namespace netsum::sim {

struct Promise {
  std::uint32_t job = 0, rank = 0;
  std::size_t results = 0;  // of its first calls; 0: it has ended, in whatever way
  Time by{};
};

// None if the profile has no such fault.
[[nodiscard]] std::vector<Promise> promises(const Scenario& scenario, const Protocol& protocol);

// Within this time of a rank's death each other rank that ran has an error that names it. Where nothing reaches a rank that
// is still heard, it has to notice first.
inline constexpr Duration notice_bound = std::chrono::seconds(5), deaf_notice_bound = std::chrono::seconds(15);

}  // namespace netsum::sim
