// How long an event loop that has found nothing looks again before it sleeps. To be woken costs some microseconds on both
// sides, to look costs one; so a few looks more are worth it where packets come in quick succession, and only there.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/time.h"

namespace netsum::runtime {

class BusyPoll {
 public:
  explicit BusyPoll(bool allowed) : allowed_(allowed) {}

  // A look found nothing: whether to yield the CPU and look again. False: sleep until something comes.
  [[nodiscard]] bool look_again(Time now) {
    if (!allowed_) return false;
    if (looks_ == 0 && skip_ > 0) {
      --skip_;
      return false;
    }
    // Whoever got the CPU kept it: it computes. A thread that sleeps is let in again sooner than one that yields.
    if (looks_ > 0 && now - looked_ > longest_yield) return give_up(most_skipped);
    if (looks_ == most_looks) return give_up(std::clamp(2 * penalty_, 1U, most_skipped));
    ++looks_;
    looked_ = now;
    return true;
  }

  // A look found something.
  void found() {
    if (looks_ > 0) penalty_ = 0;
    looks_ = 0;
  }

 private:
  static constexpr std::uint32_t most_looks = 32;     // about what a wake-up costs, if nobody else wants the CPU
  static constexpr std::uint32_t most_skipped = 256;  // sleeps without a look before, where looks have been in vain
  static constexpr auto longest_yield = std::chrono::milliseconds(1);

  bool give_up(std::uint32_t penalty) {
    penalty_ = skip_ = penalty;
    looks_ = 0;
    return false;
  }

  bool allowed_;
  std::uint32_t looks_ = 0, skip_ = 0, penalty_ = 0;
  Time looked_{};
};

}  // namespace netsum::runtime
