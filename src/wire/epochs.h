// One number for the epochs of all ranks of a job.
#pragma once

#include <cstdint>
#include <span>

namespace netsum::wire {

// What a packet to all ranks carries in place of a rank's epoch, so that one packet serves all ranks and still shows that
// the switch knows this membership.
[[nodiscard]] std::uint32_t fold_epochs(std::span<const std::uint32_t> rank_epochs);

}  // namespace netsum::wire
