// Finds at a switch, one by one, which packets of ranks are lost (§3.7, at the place of the loss). All ranks send in the
// order of sequence numbers; so a rank's packet is lost if the switch has added one that the rank sent three or more later.
//
// Slots are taken in another order: where the packet of the rank that is ahead was lost, its chunk takes a slot after later
// chunks, with another rank's packet. Then the rank that is ahead is known to have lost it, and no other.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stream/overtaken.h"

namespace netsum::atp {

class Gaps {
 public:
  static constexpr std::uint64_t reordering = stream::Overtaken::reordering;  // in sequence numbers

  Gaps() = default;
  Gaps(std::size_t window, std::size_t ranks) : slot_at_(places(window)), checked_(ranks) {}
  // Memory beside the object.
  [[nodiscard]] static std::size_t bytes(std::size_t window, std::size_t ranks) {
    return places(window) * sizeof(std::uint32_t) + ranks * sizeof(std::uint64_t);
  }

  // A chunk has taken a slot. Calls lost(rank) for each rank that is three chunks past it: also for the one that took it.
  template <class Lost>
  void opened(std::uint64_t sequence, std::uint32_t slot, Lost&& lost) {
    slot_at_[sequence & (slot_at_.size() - 1)] = slot;
    if (sequence >= most_checked_) return;
    for (std::uint32_t rank = 0; rank < checked_.size(); ++rank) {
      if (sequence < checked_[rank]) lost(rank);
    }
  }

  // A rank's packet has been added. Calls lost(slot, sequence) for each chunk that the rank is now three chunks past, once.
  // Its slot may hold another chunk by now, or the rank's packet.
  template <class Lost>
  void contributed(std::uint32_t rank, std::uint64_t sequence, Lost&& lost) {
    const std::uint64_t end = sequence < reordering ? 0 : sequence - reordering + 1;
    std::uint64_t& checked = checked_[rank];
    if (end <= checked) return;
    checked = std::max(checked, end - std::min<std::uint64_t>(end, slot_at_.size()));
    for (; checked < end; ++checked) lost(slot_at_[checked & (slot_at_.size() - 1)], checked);
    most_checked_ = std::max(most_checked_, end);
  }

 private:
  [[nodiscard]] static std::size_t places(std::size_t window) { return std::bit_ceil(std::max(window, std::size_t{1})) * 2; }

  std::vector<std::uint32_t> slot_at_;  // by sequence number modulo its size
  std::vector<std::uint64_t> checked_;  // by rank: what it has sent below this number is here, or told
  std::uint64_t most_checked_ = 0;      // of them
};

}  // namespace netsum::atp
