// A rank's lane behind an Ethernet card: its packets travel in frames, through a bump, beside frames of the same host that
// have nothing to do with gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>
#include <utility>

#include "protocol/netreduce/roce_host.h"
#include "protocol/worker_lane.h"
#include "sim/frames.h"
#include "sim/random.h"

namespace netsum::sim {

// All foreign frames, as they were sent.
class ForeignFrames {
 public:
  void sent(std::span<const std::byte> frame) { sent_.insert(key_of(frame)); }
  [[nodiscard]] bool has(std::span<const std::byte> frame) const { return sent_.contains(key_of(frame)); }

 private:
  [[nodiscard]] static std::uint64_t key_of(std::span<const std::byte> frame);
  std::unordered_set<std::uint64_t> sent_;
};

// Throws Violation if a frame comes that nobody sent, unless links may damage frames.
[[nodiscard]] std::unique_ptr<protocol::WorkerLane> behind_nic(std::unique_ptr<protocol::WorkerLane> lane,
                                                               const netreduce::RoceHostConfig& config,
                                                               ForeignFrames& foreign, bool damage, std::uint64_t seed);

}  // namespace netsum::sim
