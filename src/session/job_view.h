// What the data plane knows of a job and cannot tell its ranks itself (NetReduce: nothing of it is in a RoCEv2 packet).
#pragma once

#include <string>

#include "base/bitmap.h"
#include "session/protocol_rules.h"

namespace netsum::session {

struct JobView {
  std::string mismatch;  // ranks issued different calls: which
  RankSet missing;       // what the oldest sum waits for

  // Of another lane: whatever is first.
  void merge(const JobView& of_lane) {
    if (!of_lane.mismatch.empty()) mismatch = of_lane.mismatch;
    if (missing.empty()) missing = of_lane.missing;
  }
};

// A switch above knows only that something below another lacks. What that one says itself, a while ago, is taken where it
// names some of those still missing.
[[nodiscard]] RankSet refined(const RankSet& missing, const Placement& placement, const std::string& a_switch,
                              const RankSet& of_switch);

}  // namespace netsum::session
