// What the random streams of a scenario are for.
#pragma once

#include <cstdint>

namespace netsum::sim {

// Labels of the streams derived from the seed. One per purpose, so that removing something leaves the rest unchanged.
enum Label : std::uint64_t {
  topology = 1,
  network,
  nodes,
  switches,
  of_job = 1000,
  of_placement = 2000,
  of_recovery = 3000,
  of_scaling = 4000,
  of_ring = 5000,
  of_bypass = 6000,
  of_wire = 7000,
  of_reductions = 7500,
  of_control = 8000,
  of_bump = 9000,
  of_keys = 10000,
  of_privacy = 11000,
  of_admits = 12000,
  of_lanes = 13000,
  of_lasting = 14000,
  of_messages = 15000
};

}  // namespace netsum::sim
