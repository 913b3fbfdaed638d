// A lane's two windows of slots. What spreads values, a broadcast and an all-gather, loads the way down; what reduces loads
// the way up, and a reduce-scatter hardly anything else. Each has slots of its own, so that an all-gather beside a
// reduce-scatter waits for nothing of it (docs/collectives.md). Within a window operations follow each other in the order of
// their numbers. A chip has one window.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stream/operation.h"

namespace netsum::switchml {

// Of as many slots each as ranks and aggregator have agreed on: window w has slots [w * slots, (w + 1) * slots).
inline constexpr std::uint32_t windows = 2;

[[nodiscard]] constexpr std::size_t window_of(const stream::Operation& operation) {
  return stream::spreads(operation) ? 1 : 0;
}

}  // namespace netsum::switchml
