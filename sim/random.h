// All randomness in a simulation comes from one 64-bit seed, through independent streams: removing a worker or a kind of
// fault (sim/shrink.h) leaves every other stream unchanged.
#pragma once

#include <cstdint>

#include "base/mix.h"
#include "base/time.h"

namespace netsum::sim {

// The seed of the stream `label` below `seed`.
[[nodiscard]] constexpr std::uint64_t derive(std::uint64_t seed, std::uint64_t label) {
  return mix(mix(seed + 0x9e3779b97f4a7c15ULL) ^ (label + 1) * 0xd1342543de82ef95ULL);
}

// splitmix64
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15ULL); }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool chance(double probability) { return unit() < probability; }
  Duration between(Duration least, Duration most) {
    return least + Duration(below(static_cast<std::uint64_t>((most - least).count()) + 1));
  }
  template <class T, std::size_t N>
  const T& pick(const T (&values)[N]) {
    return values[below(N)];
  }

 private:
  std::uint64_t state_;
};

}  // namespace netsum::sim
