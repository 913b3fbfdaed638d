// Detects lost packets, one by one. Rounds are answered in the order in which they are opened; so a round is lost if the
// third one opened after it is answered first. This is RACK's rule for TCP (RFC 8985) with ATP's tolerance of reordering
// (§3.7: three packets).
//
// At SwitchML's switch, rounds are opened, and each rank contributes to them in the order in which all ranks receive
// results: a rank that has sent to three rounds opened after another round has sent to that round too, or lacks the result
// before it. A rank that sends nothing is late, and has lost nothing. At an ATP worker, transmissions are opened, and
// results answer them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace netsum::stream {

class Overtaken {
 public:
  static constexpr std::uint64_t reordering = 3;  // rounds by which packets may be reordered

  Overtaken() = default;
  Overtaken(std::size_t slots, std::size_t ranks) : round_at_(std::bit_ceil(slots) * 2), seen_(ranks) {}

  // A round begins in this slot (SwitchML: slot and version; worker: packet). Returns its place in the order of all rounds.
  [[nodiscard]] std::uint64_t open(std::uint32_t round) {
    round_at_[++opened_ & (round_at_.size() - 1)] = round;
    return opened_;
  }

  // `rank` has contributed to the round at `place`: calls overtaken(round, place) once for each round that is now known to
  // be overtaken. Its slot may hold another round by now, and the rank may have contributed to it. False: the rank sends it
  // behind the one at `place`, so it is to be looked at again.
  template <class Found>
  void contributed(std::uint32_t rank, std::uint64_t place, Found&& overtaken) {
    auto& [newest, checked] = seen_[rank];
    if (place <= newest) return;
    newest = place;
    checked = std::max(checked, place - std::min<std::uint64_t>(place, round_at_.size()));
    while (checked + reordering < place) {
      if (!overtaken(round_at_[(checked + 1) & (round_at_.size() - 1)], checked + 1)) return;
      ++checked;
    }
  }

 private:
  std::vector<std::uint32_t> round_at_;  // slot, by place modulo its size
  std::uint64_t opened_ = 0;
  struct Seen {
    std::uint64_t newest = 0, checked = 0;  // places
  };
  std::vector<Seen> seen_;  // by rank
};

}  // namespace netsum::stream
