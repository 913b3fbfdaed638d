// The aggregator slot that a chunk asks for (ATP §3.5, §3.6, §5.4.2).
//
// The paper remaps an index when the parameter packet with the new one arrives; ranks that receive it at different times
// would use different slots for one chunk. Here an index belongs to a window position, and the index in the parameter packet
// of sequence number s applies from s + window on. No rank sends s + window before it has that packet, so all ranks always
// agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "base/mix.h"

namespace netsum::atp {

enum class Indexing : std::uint8_t {
  rehash,     // HASH, rehashed after a collision (§3.6)
  hash,       // HASH, never changed
  linear,     // sequence number % slots (§5.4.2)
  partition,  // a part of the slots reserved for this job, as in SwitchML
};

struct IndexConfig {
  Indexing indexing = Indexing::rehash;
  std::uint64_t job_epoch = 0;
  std::uint32_t lane = 0;
  std::uint32_t slots = 1024;  // the smallest number at any switch of the job
  std::uint32_t window = 256;
  std::uint32_t first = 0, count = 0;  // partition
};

[[nodiscard]] constexpr std::uint64_t index_hash(std::uint64_t value) {  // splitmix64
  return mix(value + 0x9e3779b97f4a7c15ULL);
}

// The index after a collision at `index`: HASH(<aggregatorIndex>), seeded with the job and the window position so that two
// chunks that collide do not collide again. Never the same index.
[[nodiscard]] constexpr std::uint32_t rehashed(std::uint64_t job_epoch, std::uint64_t position, std::uint32_t index,
                                               std::uint32_t slots) {
  const auto next = static_cast<std::uint32_t>(index_hash(job_epoch ^ index_hash(position << 32 | index)) % slots);
  return next == index ? (index + 1) % slots : next;
}

class Indices {
 public:
  explicit Indices(const IndexConfig& config) : config_(config) {
    if (config.indexing == Indexing::linear || config.indexing == Indexing::partition) return;
    const std::uint64_t base = config.job_epoch ^ index_hash(config.lane);
    std::unordered_set<std::uint32_t> taken;
    at_.reserve(config.window);
    for (std::uint32_t position = 0; position < config.window; ++position) {
      auto index = static_cast<std::uint32_t>(index_hash(base + position) % config.slots);
      // A job does not collide with itself as long as its window fits into the slots.
      while (taken.size() < config.slots && !taken.insert(index).second) index = (index + 1) % config.slots;
      at_.push_back(index);
    }
  }

  [[nodiscard]] std::uint32_t of(std::uint64_t sequence) const {
    if (config_.indexing == Indexing::linear) return static_cast<std::uint32_t>(sequence % config_.slots);
    if (config_.indexing == Indexing::partition) {
      return config_.first + static_cast<std::uint32_t>(sequence % std::max(1U, config_.count));
    }
    return at_[sequence % config_.window];
  }

  // Takes the index from the parameter packet of `sequence`.
  void learn(std::uint64_t sequence, std::uint32_t next) {
    if (config_.indexing == Indexing::rehash) at_[sequence % config_.window] = next % config_.slots;
  }

 private:
  IndexConfig config_;
  std::vector<std::uint32_t> at_;  // by window position
};

}  // namespace netsum::atp
