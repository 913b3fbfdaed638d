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

[[nodiscard]] inline std::string in_lanes(std::size_t lanes) {
  return std::to_string(lanes) + (lanes == 1 ? " lane" : " lanes");
}

// "rank 3", "ranks 1, 3", "ranks 0, 4-1023"; of many gaps only the first, so that the text stays short
[[nodiscard]] inline std::string name_ranks(const RankSet& ranks) {
  constexpr int most_parts = 64;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  int parts = 0;
  for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
    if (!ranks.contains(rank)) continue;
    if (parts == most_parts) return text + ", ... (" + std::to_string(ranks.size()) + " in all)";
    std::uint32_t last = rank;
    while (last + 1 < max_world_size && ranks.contains(last + 1)) ++last;
    if (last < rank + 2) last = rank;  // two in a row are not shorter as a range
    text += (parts == 0 ? "" : ", ") + std::to_string(rank) + (last == rank ? "" : "-" + std::to_string(last));
    ++parts;
    rank = last;
  }
  return text;
}

}  // namespace netsum::session
