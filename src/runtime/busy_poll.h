// How long an idle event loop polls before it sleeps. A wake-up costs some microseconds on both sides, a poll costs one, so
// a few more polls pay off where packets come in quick succession, and only there.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/time.h"

namespace netsum::runtime {

class BusyPoll {
 public:
  // `woken`: something tells a sleeping loop of packets. Else (Transport::descriptor() is -1) it looks again and again while
  // packets come, and now and then when none has come for a while.
  explicit BusyPoll(bool allowed, bool woken = true) : allowed_(allowed), woken_(woken) {}

  // A poll found nothing. True: yield the CPU, if yields(), and poll again. False: sleep until something comes.
  [[nodiscard]] bool look_again(Time now) {
    if (!woken_) {
      if (looks_++ == 0) looked_ = now;
      yields_ = now - looked_ >= keeps_cpu;
      return now - looked_ < stays_awake;
    }
    if (!allowed_) return false;
    if (looks_ == 0 && skip_ > 0) {
      --skip_;
      return false;
    }
    // The thread that got the CPU kept it, so it is computing. A sleeping thread is scheduled sooner than a yielding one.
    if (looks_ > 0 && now - looked_ > longest_yield) return give_up(most_skipped);
    if (looks_ == most_looks) return give_up(raised());
    ++looks_;
    looked_ = now;
    return true;
  }

  // After look_again() said true: whether to yield the CPU before.
  [[nodiscard]] bool yields() const { return yields_; }

  // Until when to sleep, if there is something to do at `next`.
  [[nodiscard]] Time until(Time next, Time now) const { return woken_ ? next : std::min(next, now + nap); }

  // A poll found something.
  void found() {
    if (!woken_) {
      looks_ = 0;
      return;
    }
    if (looks_ > most_worthwhile) {
      give_up(raised());
    } else if (looks_ > 0) {
      penalty_ = looks_ = 0;
    }
  }

 private:
  static constexpr std::uint32_t most_looks = 32;  // costs about as much as a wake-up on an idle CPU
  // A poll that finds something after more looks than these cost more than the wake-up that it saved. Without this limit,
  // threads that yield to each other make each look last longer, until all looks find something and no CPU is ever idle.
  static constexpr std::uint32_t most_worthwhile = 3;
  static constexpr std::uint32_t most_skipped = 256;  // sleeps without polling first, after polls in vain
  static constexpr auto longest_yield = std::chrono::milliseconds(1);
  // Where nothing wakes: packets that are on their way come sooner than a CPU that was yielded to somebody who computes; and
  // a CPU that has had none for longer is worth more to others than a nap's delay costs.
  static constexpr std::chrono::microseconds keeps_cpu{200};
  static constexpr std::chrono::milliseconds stays_awake{2};
  static constexpr std::chrono::microseconds nap{50};

  [[nodiscard]] std::uint32_t raised() const { return std::clamp(2 * penalty_, 1U, most_skipped); }
  bool give_up(std::uint32_t penalty) {
    penalty_ = skip_ = penalty;
    looks_ = 0;
    return false;
  }

  bool allowed_, woken_, yields_ = true;
  std::uint32_t looks_ = 0, skip_ = 0, penalty_ = 0;
  Time looked_{};
};

}  // namespace netsum::runtime
