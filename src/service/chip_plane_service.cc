#include "service/chip_plane_service.h"

#include <utility>

#include "jobs/chip_profile.h"

namespace netsum::service {
namespace {

std::vector<ChipPlane*> lanes_of(const ChipPlanes& planes) {
  std::vector<ChipPlane*> lanes;
  for (const auto& plane : planes) lanes.push_back(plane.get());
  return lanes;
}

}  // namespace

ChipPlaneService::ChipPlaneService(const Lanes& lanes, ChipPlanes planes, SwitchMlSurroundings surroundings)
    : SwitchMlJobs(jobs::switchml_chip_rules(), lanes, lanes_of(planes), std::move(surroundings)),
      planes_(std::move(planes)) {}

void ChipPlaneService::report(std::size_t lane, Counters& counters) const {
  SwitchMlJobs::report(lane, counters);
  const ChipPlane::Carried carried = planes_[lane]->carried();
  counters.add("packets_received", carried.received);
  counters.add("packets_sent", carried.sent);
}

}  // namespace netsum::service
