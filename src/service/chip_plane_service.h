// SwitchML at an aggregator, or at a switch below it, whose sums are made elsewhere: chip_plane.h.
#pragma once

#include "jobs/chip_profile.h"
#include "service/chip_plane.h"
#include "service/switchml_jobs.h"

namespace netsum::service {

class ChipPlaneService final : public SwitchMlJobs<ChipPlane> {
 public:
  // `lanes`: where probes and everything else than the profile's packets come.
  ChipPlaneService(const Lanes& lanes, ChipPlanes planes, SwitchMlSurroundings surroundings);

  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::Profile> profile() const override { return jobs::said_profile({}); }

 private:
  const ChipPlanes planes_;
};

}  // namespace netsum::service
