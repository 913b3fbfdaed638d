// How late packets leave after their lane was told the time, and so when its time-outs are over.
//
// A lane takes packets to leave at the time that it is told, and its time-outs count from then. On a busy host a thread may
// lose its processor before they have left, for some milliseconds; then a time-out would be over before an answer can come.
// Where threads were late, they will be again, so the most of the last half second is allowed for.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/time.h"

namespace netsum::runtime {

class Lateness {
 public:
  // The lane was told the time `told`, and all that it sent had left by `left`.
  void sent(Time told, Time left) {
    if (left >= next_period_) {
      last_ = left < next_period_ + period ? this_ : Duration::zero();
      this_ = Duration::zero();
      next_period_ = left + period;
    }
    this_ = std::max(this_, left - told);
  }

  // When a lane's time-out is over.
  [[nodiscard]] Time over(Time timeout) const { return after(timeout, std::max(last_, this_)); }

 private:
  static constexpr Duration period = std::chrono::milliseconds(250);  // the longest time-out

  Time next_period_{};
  Duration this_{}, last_{};  // the most of the period, and of the one before it
};

}  // namespace netsum::runtime
