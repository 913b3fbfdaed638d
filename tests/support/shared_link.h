// A job and one flow of TCP on one link: who gets how much of it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>

#include "support/cubic_flow.h"
#include "support/virtual_network.h"

namespace netsum::testing {

// A job that all-reduces again and again, with pauses of about 2 ms.
struct Reducing {
  std::function<bool()> done;     // the last all-reduce
  std::function<void()> begin;    // the next one
  std::function<double()> bytes;  // of tensors, that were reduced so far
};

// Bytes of tensors and of TCP's payload.
struct Shared {
  double job = 0, tcp = 0;
  [[nodiscard]] double share() const { return job / (job + tcp); }
};

// The flow begins half a second before the job does; what the two get `during` that time counts.
inline Shared share_link(VirtualNetwork& network, Random& random, CubicSender& sender, const CubicReceiver& receiver,
                         const Reducing& job, Duration before, Duration during) {
  using namespace std::chrono_literals;
  const auto run_for = [&](Duration duration) {
    const Time end = network.now + duration;
    while (network.step(end)) {
    }
  };
  const auto reduce_for = [&](Duration duration) {
    const Time end = network.now + duration;
    const double bytes = job.bytes();
    while (network.now < end) {
      if (job.done()) {
        run_for(1ms + Duration(random.below(2'000'000)));
        job.begin();
      }
      while (!job.done() && network.step(end)) {
      }
    }
    return job.bytes() - bytes;
  };
  sender.begin();
  run_for(500ms + Duration(random.below(100'000'000)));
  reduce_for(before);
  const std::uint64_t delivered = receiver.delivered();
  Shared shared;
  shared.job = reduce_for(during);
  shared.tcp = static_cast<double>((receiver.delivered() - delivered) * cubic_payload);
  return shared;
}

// By the mean of a few seeds.
inline void expect_fair(const std::function<double(std::uint64_t seed)>& share_of) {
  double sum = 0;
  constexpr std::uint64_t seeds = 2;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) sum += share_of(seed);
  EXPECT_LE(0.4, sum / seeds);
  EXPECT_GE(0.6, sum / seeds);
}

}  // namespace netsum::testing
