// When a lane's thread has the kernel drop datagrams that belong to none of its jobs, and the filter for that. A datagram
// dropped by the kernel costs its sender time; a received one costs the lane's jobs time.
#pragma once

#include <linux/filter.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"

namespace netsum::runtime {

// Shut while strangers (datagrams of no job here) flood the lane. No I/O and no clock.
class FloodGate {
 public:
  // Shuts beyond this many strangers in a window. Fewer cost too little to delay a rank's "unknown job" answer.
  static constexpr std::uint64_t most_in_window = 2000;
  static constexpr Duration window = std::chrono::milliseconds(100);
  // How often the flood is checked while the gate is shut.
  static constexpr Duration look_again = std::chrono::seconds(1);

  // `strangers` more were received. True: just shut.
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
  // Call when due. `dropped`: datagrams that the kernel has dropped so far. True: open again.
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

// Whose packets a lane expects.
struct Guests {
  std::vector<std::uint64_t> epochs;  // of SwitchML and ATP jobs
  std::uint32_t rings = 0;            // of NetReduce: with one, all RoCE packets pass
};

// One in this many strangers passes a shut gate, so that a rank of an ended job is told that it has ended.
inline constexpr std::uint32_t strangers_that_pass = 256;

// For Transport::set_filter: passes the guests' packets, probes, and one in `one_in` of the rest (a power of two; 0: none).
// A train that the kernel coalesced from one source's datagrams is judged by the first. Empty: too many jobs.
[[nodiscard]] std::vector<sock_filter> filter_of(const Guests& guests, std::uint32_t one_in = strangers_that_pass);

}  // namespace netsum::runtime
