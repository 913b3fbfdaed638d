// How durations and ranks read in errors.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "base/bitmap.h"
#include "base/time.h"

namespace netsum::session {

[[nodiscard]] inline std::string in_seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

// "rank 3", "ranks 1, 3"
[[nodiscard]] inline std::string name_ranks(const RankSet& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  bool first = true;
  for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
    if (!ranks.contains(rank)) continue;
    text += (first ? "" : ", ") + std::to_string(rank);
    first = false;
  }
  return text;
}

}  // namespace netsum::session
