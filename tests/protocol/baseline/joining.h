// What is the protocol's own in joining: how long a rank waits before it asks again for a sum that lacks other ranks.
#pragma once

#include <cstdint>

#include "jobs/own_part.h"

namespace netsum::baseline {

// A rank asks for it, and its job is granted the shortest that a rank asked for.
struct Patience {
  std::uint32_t milliseconds = 1000;
};
template <class Archive>
void fields(Archive& a, Patience& m) {
  a.number(1, "milliseconds", m.milliseconds);
}

}  // namespace netsum::baseline
