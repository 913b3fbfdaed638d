// One rank's part in the all-reduce of tensors so short that latency is the number of times ranks wait for each other: one.
// Each rank publishes its values; when all have, each rank sums them. A pure state machine, run like Member.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bitmap.h"
#include "protocol/shared/layout.h"
#include "protocol/shared/member.h"
#include "stream/operation.h"
#include "stream/underflow.h"

namespace netsum::shared {

// Whether a call takes this path. Depends only on properties that all ranks share. Each rank reads all ranks' values, so the
// length limit falls with the number of ranks.
[[nodiscard]] bool is_small(const stream::Operation& operation, std::uint32_t world_size);

class SmallMember {
 public:
  // Two slots per rank; `peers` by rank.
  SmallMember(std::uint32_t rank, std::uint32_t world_size, SmallSlot* own, std::vector<const SmallSlot*> peers);

  // Publishes this rank's values; the previous operation must have finished. The caller then publishes posted() with release
  // order.
  void post(const stream::Operation& operation);
  [[nodiscard]] std::uint64_t posted() const { return posted_; }  // operations so far

  // `others`: the peers' posted(), by rank, copied with acquire order. True if all ranks have posted: then the result is in
  // the tensor, or failure() is set.
  [[nodiscard]] bool finish(std::span<const std::uint64_t> others);
  [[nodiscard]] const std::optional<MemberFailure>& failure() const { return failure_; }
  [[nodiscard]] RankSet missing(std::span<const std::uint64_t> others) const;
  [[nodiscard]] const stream::Underflow& underflow() const { return sample_.found(); }  // of this rank's values

 private:
  std::uint32_t rank_, world_size_;
  SmallSlot* own_;
  std::vector<const SmallSlot*> peers_;
  stream::Operation operation_;
  std::uint32_t signature_ = 0;
  std::uint64_t posted_ = 0;
  std::optional<MemberFailure> failure_;
  stream::UnderflowSample sample_;
};

}  // namespace netsum::shared
