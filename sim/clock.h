// A host's own clock.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace netsum::sim {

// A clock that runs fast or slow from an arbitrary start.
class Clock {
 public:
  Clock(double rate, Duration offset) : parts_(static_cast<std::int64_t>(rate * 1e6)), offset_(offset) {}

  [[nodiscard]] Time local(Time global) const {
    const auto elapsed = global.time_since_epoch();
    return Time(offset_ + elapsed + elapsed / 1'000'000 * parts_);
  }
  // The first global time at which the local clock shows `time` or later.
  [[nodiscard]] Time global(Time time) const {
    if (time == never) return never;
    Time guess = Time(Duration((time.time_since_epoch() - offset_).count() / (1'000'000 + parts_) * 1'000'000));
    const Duration short_of = time - local(guess);
    guess += short_of - short_of / 1'000'000 * parts_;
    while (local(guess) < time) guess += std::chrono::microseconds(1);
    return guess;
  }

 private:
  std::int64_t parts_;  // per million
  Duration offset_;
};

}  // namespace netsum::sim
