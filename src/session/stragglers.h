// Ranks that the others do not wait for any longer: those whose program is late with its call. Its process is well, and
// takes part in all agreements: only the program's values are missing.
#pragma once

#include <cstdint>
#include <span>

#include "base/bitmap.h"
#include "base/time.h"

namespace netsum::session {

struct Paced {
  std::uint32_t rank = 0;
  bool calls = false;      // as Pace
  std::uint64_t next = 0;  // its first call without a result
  Duration since{};
  bool aside = false;  // it was late already
};

// Another one must have been inside of a call for `deadline`, and the late one outside of calls, and not further than that
// call. Whatever result a late one has, all the others have it: if one of these dies, no other sums it anew. None, if fewer
// than `least` others would be left.
[[nodiscard]] RankSet stragglers(std::span<const Paced> ranks, Duration deadline, std::uint32_t least);

}  // namespace netsum::session
