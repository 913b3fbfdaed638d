#include "sim/racks.h"

#include <algorithm>

#include "sim/labels.h"
#include "sim/random.h"

namespace netsum::sim {

void draw_racks(Scenario& scenario, std::uint32_t most) {
  Random random(derive(scenario.seed, Label::switches));
  std::uint32_t largest = 0;
  for (const JobPlan& job : scenario.jobs) largest = std::max(largest, job.workers);
  if (random.chance(0.5) && largest <= most) return;
  const auto racks = static_cast<std::uint32_t>(largest >= 32 ? largest / 8 : random.between(1, 4));
  scenario.parent_of_switch.assign(racks, UINT32_MAX);
  if (random.chance(0.4)) {  // a third level, and some ranks directly below the root
    scenario.parent_of_switch.push_back(UINT32_MAX);
    for (std::uint32_t i = 0; i < racks; ++i) {
      if (random.chance(0.8)) scenario.parent_of_switch[i] = racks;
    }
  }
  const bool mixed = random.chance(0.3);  // ranks may be at any switch
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    Random place(derive(scenario.seed, Label::of_placement + index));
    const bool in_turn = place.chance(0.3);  // neighbours in the ring are never in one rack
    for (std::uint32_t rank = 0; rank < job.workers; ++rank) {
      const std::uint32_t neighbours = rank * racks / job.workers;
      std::uint32_t at = in_turn ? rank % racks : neighbours;
      if (mixed && place.chance(0.3)) {
        const auto any = static_cast<std::uint32_t>(place.below(scenario.parent_of_switch.size() + 1));
        at = any == scenario.parent_of_switch.size() ? UINT32_MAX : any;
      }
      job.switch_of_rank.push_back(at);
    }
  }
}

}  // namespace netsum::sim
