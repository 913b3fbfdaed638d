// What of a job waits for ranks, for its report over all lanes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "protocol/atp/server.h"
#include "protocol/netreduce/ring_config.h"
#include "protocol/switchml/switch.h"
#include "session/job_report.h"

namespace netsum::service {

inline constexpr std::size_t stalled_shown = 8;

// One of a lane's; the oldest of all lanes stay.
template <class Ranks>
void add_stalled(session::JobReport& report, std::uint64_t operation, std::uint32_t chunk, std::uint32_t slot,
                 const Ranks& missing) {
  session::JobReport::Stalled stalled{operation, chunk, slot, {}};
  missing.for_each([&](std::uint32_t rank) { stalled.missing.push_back(rank); });
  auto& list = report.stalled;
  const auto place = std::upper_bound(list.begin(), list.end(), stalled, [](const auto& a, const auto& b) {
    return std::tie(a.operation, a.chunk) < std::tie(b.operation, b.chunk);
  });
  list.insert(place, std::move(stalled));
  if (list.size() > stalled_shown) list.pop_back();
}

inline void add_stalled(session::JobReport& report, const std::vector<switchml::StalledChunk>& chunks) {
  for (const auto& each : chunks) add_stalled(report, each.operation, each.chunk, each.slot, each.missing);
}

// A parameter server knows no operations, only the places of chunks in the job's stream.
inline void add_stalled(session::JobReport& report, const std::vector<atp::StalledSequence>& chunks) {
  report.stalled_unit = "sequence";
  for (const auto& each : chunks) add_stalled(report, each.sequence, 0, 0, each.missing);
}

// A ring knows messages.
inline void add_stalled(session::JobReport& report, const netreduce::RingStall& stall) {
  report.stalled_unit = "message";
  const std::uint64_t slots = std::max(1U, report.job.slots);
  add_stalled(report, stall.message, stall.packet, static_cast<std::uint32_t>(stall.message % slots), stall.missing);
}

}  // namespace netsum::service
