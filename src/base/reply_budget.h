// How often strangers are answered. Packets of unknown jobs may have forged sources, and must not turn this host against
// another.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace netsum {

class ReplyBudget {
 public:
  static constexpr Duration interval = std::chrono::milliseconds(10);
  static constexpr std::uint32_t burst = 64;  // per interval

  // Whether one more may be answered now.
  [[nodiscard]] bool take(Time now) {
    if (now - since_ >= interval) {
      since_ = now;
      left_ = burst;
    }
    if (left_ == 0) return false;
    --left_;
    return true;
  }

 private:
  Time since_{};
  std::uint32_t left_ = 0;
};

}  // namespace netsum
