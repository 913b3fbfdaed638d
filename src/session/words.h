// How durations, sizes and ranks read in errors.
#pragma once

#include <chrono>
#include <cstdint>
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

// "512 bytes", "1.5 MiB"
[[nodiscard]] inline std::string in_bytes(std::uint64_t bytes) {
  constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, units[unit]);
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
