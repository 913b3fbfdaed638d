// Random early detection at a queue (Floyd and Jacobson, 1993), with its gentle variant.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/time.h"
#include "sim/random.h"
#include "sim/topology.h"

namespace netsum::sim {

class Red {
 public:
  explicit Red(std::uint64_t seed) : random_(seed) {}

  // Whether a packet that finds so many bytes is dropped, or marked. `idle`: how many packets could have been sent since the
  // queue was empty.
  [[nodiscard]] bool refuses(const RedPlan& plan, std::uint64_t queued, double idle) {
    if (idle > 0) average_ *= std::pow(1 - plan.weight, idle);
    average_ += plan.weight * (static_cast<double>(queued) - average_);
    const auto least = static_cast<double>(plan.least_bytes), most = static_cast<double>(plan.most_bytes);
    if (average_ < least) {
      since_ = 0;
      return false;
    }
    const double chance = average_ < most ? plan.most_chance * (average_ - least) / (most - least)
                                          : plan.most_chance + (1 - plan.most_chance) * (average_ - most) / most;
    // Refusals are apart by numbers of packets that are all as likely, from one to 1 / chance.
    const double spent = static_cast<double>(since_) * chance;
    if (chance < 1 && spent < 1 && random_.unit() >= chance / (1 - spent)) {
      ++since_;
      return false;
    }
    since_ = 0;
    return true;
  }
  [[nodiscard]] double average() const { return average_; }

 private:
  Random random_;
  double average_ = 0;
  std::uint64_t since_ = 0;  // the last refusal: packets
};

}  // namespace netsum::sim
