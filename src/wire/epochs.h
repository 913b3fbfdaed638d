// One number for the epochs of all ranks of a job.
#pragma once

#include <cstdint>
#include <span>

namespace netsum::wire {

// Packets to all ranks carry this in place of a rank's epoch: one packet serves all ranks, and still shows that the switch
// knows this membership.
[[nodiscard]] std::uint32_t fold_epochs(std::span<const std::uint32_t> rank_epochs);

}  // namespace netsum::wire
