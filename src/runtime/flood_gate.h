// When a lane's thread has the kernel drop what belongs to none of its jobs, and what that is. A datagram that the kernel
// drops costs its sender time; one that is received costs the lane's jobs theirs.
#pragma once

#include <linux/filter.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"

namespace netsum::runtime {

// Shut while datagrams of no job come in floods. No I/O and no clock.
class FloodGate {
 public:
  // Beyond so many strange datagrams in a window it shuts. What fewer cost is not worth a rank's waiting for "unknown job".
  static constexpr std::uint64_t most_in_window = 2000;
  static constexpr Duration window = std::chrono::milliseconds(100);
  // While it is shut, the flood is looked at so often.
  static constexpr Duration look_again = std::chrono::seconds(1);

  // `strangers` more of them were received. True: shut now.
  [[nodiscard]] bool received(std::uint64_t strangers, Time now) {
    if (now - began_ > window) {
      began_ = now;
      in_window_ = 0;
    }
    in_window_ += strangers;
    if (shut_ || in_window_ <= most_in_window) return false;
    shut_ = true;
    looked_ = now;
    dropped_.reset();
    return true;
  }

  [[nodiscard]] bool is_shut() const { return shut_; }
  [[nodiscard]] bool is_due(Time now) const { return shut_ && now - looked_ >= look_again; }
  // When it is due: how many the kernel has dropped so far. True: open again.
  [[nodiscard]] bool looked(std::uint64_t dropped, Time now) {
    const bool ebbs = dropped_ && dropped - *dropped_ < most_in_window;
    dropped_ = dropped;
    looked_ = now;
    if (ebbs) shut_ = false;
    return ebbs;
  }

 private:
  bool shut_ = false;
  std::uint64_t in_window_ = 0;
  std::optional<std::uint64_t> dropped_;
  Time began_{}, looked_{};
};

// What a lane expects.
struct Guests {
  std::vector<std::uint64_t> epochs;  // of its SwitchML and ATP jobs
  std::uint32_t rings = 0;            // NetReduce's: with one, all RoCE packets pass
};

// One in so many strange datagrams passes all the same, so that a rank of a job that has ended is told so.
inline constexpr std::uint32_t strangers_that_pass = 256;

// For Transport::set_filter: passes the guests' packets, probes, and one in `one_in` of the rest (a power of two; 0: none).
// Of a train that the kernel has made of datagrams from one source the first decides. Empty: there are too many jobs.
[[nodiscard]] std::vector<sock_filter> filter_of(const Guests& guests, std::uint32_t one_in = strangers_that_pass);

}  // namespace netsum::runtime
