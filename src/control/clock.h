// The clock of deadlines and ages.
#pragma once

#include <chrono>

#include "base/time.h"

namespace netsum::control {

[[nodiscard]] inline Time now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace netsum::control
