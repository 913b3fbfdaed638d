// The time-out of a lane, from round trips (RFC 6298's smoothing), sampled by the caller on first transmissions only (Karn).
#pragma once

#include <algorithm>

#include "base/time.h"

namespace netsum::stream {

class RetransmissionTimer {
 public:
  RetransmissionTimer(Duration initial, Duration least, Duration most) : timeout_(initial), least_(least), most_(most) {}

  void sample(Duration round_trip) {
    if (smoothed_ == Duration::zero()) {
      smoothed_ = round_trip;
      variation_ = round_trip / 2;
    } else {
      const Duration error = round_trip > smoothed_ ? round_trip - smoothed_ : smoothed_ - round_trip;
      variation_ += (error - variation_) / 4;
      smoothed_ += (round_trip - smoothed_) / 8;
    }
    // Steady round trips would leave no room for a peer that runs a moment late (RFC 6298's G).
    timeout_ = std::min(smoothed_ + std::max(least_, 4 * variation_), most_);
  }

  // For the transmission number `transmissions` (1: the first) of a packet: doubles with each, up to the most.
  [[nodiscard]] Duration timeout(std::uint32_t transmissions = 1) const {
    return std::min(most_, timeout_ * (std::int64_t{1} << std::min(transmissions - 1, 16U)));
  }

 private:
  Duration timeout_, least_, most_;
  Duration smoothed_{}, variation_{};
};

}  // namespace netsum::stream
