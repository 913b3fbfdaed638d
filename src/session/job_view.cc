#include "session/job_view.h"

#include <cstdint>

namespace netsum::session {

RankSet refined(const RankSet& missing, const Placement& placement, const std::string& switch_id, const RankSet& of_switch) {
  const RankSet told = missing.in_both(of_switch);
  if (told.empty()) return missing;
  RankSet below;
  for (std::uint32_t rank = 0; rank < placement.switch_of_rank.size(); ++rank) {
    std::uint32_t at = placement.switch_of_rank[rank];
    while (at != Placement::at_server && placement.switches[at] != switch_id) at = placement.parent_of_switch[at];
    if (at != Placement::at_server) below.insert(rank);
  }
  const RankSet named = told.in_both(below);
  return named.empty() ? missing : missing.minus(below).united(named);
}

}  // namespace netsum::session
