// How often a log repeats a line about something that is counted: only if there was more of it, and at most once a minute.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "base/time.h"

namespace netsum::telemetry {

class LineLimit {
 public:
  // `count`: so far; if it is lower than before, it has begun anew. Returns what has come since the last line, if there may
  // be another now; else 0.
  [[nodiscard]] std::uint64_t take(std::uint64_t count, Time at) {
    if (count < said_) said_ = 0;
    if (count == said_ || at < again_) return 0;
    again_ = at + std::chrono::minutes(1);
    return count - std::exchange(said_, count);
  }
  // Of what is not counted elsewhere, once more.
  [[nodiscard]] bool take(Time at) { return take(said_ + 1, at) != 0; }

 private:
  std::uint64_t said_ = 0;  // the count in the last line
  Time again_{};
};

}  // namespace netsum::telemetry
