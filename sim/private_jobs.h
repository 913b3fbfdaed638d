// Jobs of a scenario whose aggregators cannot read what they add.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "jobs/public_keys.h"
#include "seal/private_sums.h"
#include "sim/protocol.h"
#include "sim/scenario.h"

namespace netsum::sim {

// Draws which jobs are private, and leaves them the reductions that those can have. `floats`: they have block fixed point.
void draw_private(Scenario& scenario, bool floats);

// A rank's share of the agreement in one attempt to join; `life` as in Protocol::complete().
[[nodiscard]] jobs::PrivateAsk privacy_of(const Scenario& scenario, const JobPlan& plan, std::uint32_t rank,
                                          std::uint32_t life);
// `all`: as the admission has them.
[[nodiscard]] std::optional<seal::PadKeys> pads_of(const WorkerLanePlan& plan, std::span<const seal::PublicKey> all);

}  // namespace netsum::sim
