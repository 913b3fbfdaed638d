// Facts about a job that the data plane cannot tell its ranks itself (NetReduce: RoCEv2 packets have no field for them; an
// XDP program).
#pragma once

#include <string>

#include "base/bitmap.h"
#include "session/membership.h"

namespace netsum::session {

struct JobView {
  std::string mismatch;  // ranks issued different calls; names them
  RankSet missing;       // ranks that the oldest sum waits for
  std::string hopeless;  // why the data plane cannot finish the job, which ends with this; empty: it can

  // Adds another lane's view; for `missing` the first one wins.
  void merge(const JobView& of_lane) {
    if (!of_lane.mismatch.empty()) mismatch = of_lane.mismatch;
    if (missing.empty()) missing = of_lane.missing;
    if (hopeless.empty()) hopeless = of_lane.hopeless;
  }
};

// A switch knows only that ranks below another switch are missing. That switch's own last report replaces them, if it names
// some that are still missing.
[[nodiscard]] RankSet refined(const RankSet& missing, const Placement& placement, const std::string& switch_id,
                              const RankSet& of_switch);

}  // namespace netsum::session
