// SwitchML's chunks that wait, for a job's report over all lanes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "protocol/switchml/switch.h"
#include "session/job_report.h"

namespace netsum::service {

inline constexpr std::size_t stalled_shown = 8;

// One lane's; the oldest of all lanes stay.
inline void add_stalled(session::JobReport& report, const std::vector<switchml::StalledChunk>& chunks) {
  for (const auto& chunk : chunks) {
    session::JobReport::Stalled stalled{chunk.operation, chunk.chunk, chunk.slot, {}};
    chunk.missing.for_each([&](std::uint32_t rank) { stalled.missing.push_back(rank); });
    report.stalled.push_back(std::move(stalled));
  }
  std::sort(report.stalled.begin(), report.stalled.end(),
            [](const auto& a, const auto& b) { return std::tie(a.operation, a.chunk) < std::tie(b.operation, b.chunk); });
  if (report.stalled.size() > stalled_shown) report.stalled.resize(stalled_shown);
}

}  // namespace netsum::service
