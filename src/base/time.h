// Time as protocols see it: a number that the caller passes in. Only runtime/ and sim/ have a source of time.
#pragma once

#include <chrono>

namespace netsum {

// A clock without now(): protocol code that tries to read the time does not compile.
struct MonotonicTime {
  using rep = std::chrono::nanoseconds::rep;
  using period = std::chrono::nanoseconds::period;
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<MonotonicTime, duration>;
  static constexpr bool is_steady = true;
};

using Duration = MonotonicTime::duration;
using Time = MonotonicTime::time_point;

inline constexpr Time never = Time::max();

// `patience` after `from`, without overflow.
[[nodiscard]] constexpr Time after(Time from, Duration patience) {
  return patience < never - from ? from + patience : never;
}

}  // namespace netsum
