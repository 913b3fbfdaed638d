// A job of ranks that have a host on each lane, under a virtual clock: how far it is.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "support/virtual_network.h"

namespace netsum::testing {

class VirtualJob {
 public:
  VirtualJob(std::uint32_t ranks, std::uint32_t lanes, std::uint64_t seed, const Faults& faults)
      : network(seed, faults), lane_count_(lanes), completed_(ranks) {}

  // Runs until every rank has completed `operations` operations on every lane, or virtual time ends. Whether it did.
  bool run(std::size_t operations, Duration limit = std::chrono::seconds(60)) {
    return run_until([&] { return all_completed(operations); }, limit);
  }
  // Delivers or times out the next thing; false if there is none before `end` (time then stands at `end`).
  bool step(Time end) { return network.step(end); }

  [[nodiscard]] bool all_completed(std::size_t operations) const {
    return std::all_of(completed_.begin(), completed_.end(), [&](const auto& counts) {
      return static_cast<std::size_t>(std::count(counts.begin(), counts.end(), lane_count_)) >= operations;
    });
  }

  VirtualNetwork network;

 protected:
  ~VirtualJob() = default;

  template <class Condition>
  bool run_until(Condition condition, Duration limit) {
    const Time end = network.now + limit;
    while (!condition()) {
      if (!step(end)) return false;
    }
    return true;
  }
  // On one of the rank's lanes.
  void completed(std::uint32_t rank, const std::vector<std::uint64_t>& numbers) {
    for (const std::uint64_t number : numbers) {
      if (completed_[rank].size() <= number) completed_[rank].resize(number + 1);
      ++completed_[rank][number];
    }
  }

 private:
  std::uint32_t lane_count_;
  std::vector<std::vector<std::uint32_t>> completed_;  // [rank][operation]: lanes that are done
};

}  // namespace netsum::testing
