// Facts about a job that the data plane cannot tell its ranks itself (NetReduce: RoCEv2 packets have no field for them; an
// XDP program).
#pragma once

#include <cstdint>
#include <string>

#include "base/bitmap.h"
#include "session/membership.h"

namespace netsum::session {

struct JobView {
  // Two ranks issued different calls: which, and as what ("issued different calls as message 3"). Empty: none did. Ranks are
  // places among the members.
  std::string mismatch;
  std::uint32_t first_rank = 0, second_rank = 0;
  RankSet missing;       // ranks that the oldest sum waits for
  std::string hopeless;  // why the data plane cannot finish the job, which ends with this; empty: it can

  void take_mismatch(const JobView& other) {
    if (other.mismatch.empty()) return;
    mismatch = other.mismatch;
    first_rank = other.first_rank;
    second_rank = other.second_rank;
  }
  // Adds another lane's view; for `missing` the first one wins.
  void merge(const JobView& of_lane) {
    take_mismatch(of_lane);
    if (missing.empty()) missing = of_lane.missing;
    if (hopeless.empty()) hopeless = of_lane.hopeless;
  }
};

// A switch knows only that ranks below another switch are missing. That switch's own last report replaces them, if it names
// some that are still missing.
[[nodiscard]] RankSet refined(const RankSet& missing, const Placement& placement, const std::string& switch_id,
                              const RankSet& of_switch);

}  // namespace netsum::session
