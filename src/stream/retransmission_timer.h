// The time-out of a lane, from round trips (RFC 6298's smoothing), where it is certain which transmission was answered.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace netsum::stream {

class RetransmissionTimer {
 public:
  RetransmissionTimer(Duration initial, Duration least, Duration most) : timeout_(initial), least_(least), most_(most) {}

  // An answer, so long after the first transmission and after the last. After a repeat it does not say which of them it is
  // for (Karn); but sooner than any round trip was, it is for an earlier one, and the repeat was in vain. Leaving those out
  // would leave the time-out too short for as long as it is; but a few that the network held for long shall not make it
  // as long.
  void answered(Duration after_first, Duration after_last) {
    if (after_first == after_last) {
      sample(after_first);
    } else if (after_last < least_round_trip_) {
      sample(std::min(after_first, timeout_));
    }
  }

  void sample(Duration round_trip) {
    if (smoothed_ == Duration::zero()) {
      least_round_trip_ = round_trip;
      smoothed_ = round_trip;
      variation_ = round_trip / 2;
    } else {
      const Duration error = round_trip > smoothed_ ? round_trip - smoothed_ : smoothed_ - round_trip;
      variation_ += (error - variation_) / 4;
      smoothed_ += (round_trip - smoothed_) / 8;
      least_round_trip_ = std::min(least_round_trip_, round_trip);
    }
    // Steady round trips would leave no room for a peer that runs a moment late (RFC 6298's G).
    timeout_ = std::min(smoothed_ + std::max(least_, 4 * variation_), most_);
  }

  [[nodiscard]] Duration smoothed_round_trip() const { return smoothed_; }

  // For the transmission number `transmissions` (1: the first) of a packet: doubles with each, up to the most.
  [[nodiscard]] Duration timeout(std::uint32_t transmissions = 1) const {
    return std::min(most_, timeout_ * (std::int64_t{1} << std::min(transmissions - 1, 16U)));
  }

 private:
  Duration timeout_, least_, most_;
  Duration smoothed_{}, variation_{}, least_round_trip_{};
};

}  // namespace netsum::stream
