// What ports of all kinds have in common: how long frames take, and which ones are lost behind them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"
#include "sim/random.h"
#include "sim/topology.h"

namespace netsum::sim {

struct PortCounts {
  std::uint64_t packets = 0, bytes = 0;  // sent into the wire; frames
  std::uint64_t dropped = 0, lost = 0, marked = 0;
  std::uint64_t longest_queue = 0;  // bytes
  std::uint64_t pauses = 0;         // that it was told (PFC)
  Duration paused{};                // of any priority
};

[[nodiscard]] inline std::uint64_t picoseconds(Time time) {
  return static_cast<std::uint64_t>(time.time_since_epoch().count()) * 1000;
}

// When a port has sent all that it took: picoseconds, and a fraction of another one, so that rates are exact over many
// frames.
class PortClock {
 public:
  PortClock() = default;
  explicit PortClock(std::uint64_t bits_per_second) : rate_(bits_per_second) {}

  [[nodiscard]] bool unlimited() const { return rate_ == 0; }
  [[nodiscard]] std::uint64_t free() const { return free_; }
  // Of what it took.
  [[nodiscard]] std::uint64_t left(std::uint64_t now) const {
    if (free_ < now) return 0;
    // In 128 bits: a second of a queue at 1 Tbit/s takes 80 bits.
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{free_ - now} * rate_ + rest_) / picoseconds_per_byte);
  }
  // Takes a frame, which it sends from `start` on or behind the others.
  void take(std::uint64_t start, std::uint64_t bytes) {
    if (free_ < start) {
      free_ = start;
      rest_ = 0;
    }
    // What a division leaves counts for the next frame.
    rest_ += bytes * picoseconds_per_byte;
    free_ += rest_ / rate_;
    rest_ %= rate_;
  }
  // When the last bit is sent.
  [[nodiscard]] Time done() const {
    const std::uint64_t end = free_ + (rest_ == 0 ? 0 : 1);
    return Time(Duration(static_cast<std::int64_t>((end + 999) / 1000)));
  }

 private:
  // A port that sends `rate` bits a second takes so many picoseconds / rate for each byte.
  static constexpr std::uint64_t picoseconds_per_byte = 8'000'000'000'000;

  std::uint64_t free_ = 0, rest_ = 0;  // rest_: over rate_
  std::uint64_t rate_ = 0;             // bits a second; 0: unlimited
};

class PortLosses {
 public:
  PortLosses() = default;
  explicit PortLosses(std::uint64_t seed) : seed_(seed) {}

  void offer() { ++offered_; }  // a packet comes to the port
  // Whether that one is lost, so long after the experiment's begin. Gilbert's model: a burst begins behind a packet that is
  // not lost, and ends behind one that is, by chances that give plan.loss and plan.loss_burst.
  [[nodiscard]] bool loses(const PortPlan& plan, Duration since) {
    const bool out = std::any_of(plan.outages.begin(), plan.outages.end(),
                                 [&](const PortPlan::Outage& outage) { return since >= outage.from && since < outage.to; });
    if (plan.loss <= 0) return out;
    const double drawn = static_cast<double>(mix(seed_ ^ mix(offered_)) >> 11) * 0x1p-53;
    const double ends = 1 / plan.loss_burst;
    const double chance = plan.loss_burst == 1 ? plan.loss : losing_ ? 1 - ends : ends * plan.loss / (1 - plan.loss);
    losing_ = drawn < chance;
    return out || losing_;
  }

 private:
  std::uint64_t seed_ = 0;
  std::uint64_t offered_ = 0;
  bool losing_ = false;  // a burst goes on
};

}  // namespace netsum::sim
