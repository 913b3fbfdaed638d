// One rank's part in the all-reduce of tensors so short that what counts is how often ranks wait for each other: once. Each
// shows its values, and when all have, each sums them. A pure state machine, run like Member.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bitmap.h"
#include "protocol/shared/layout.h"
#include "protocol/shared/member.h"
#include "stream/operation.h"

namespace netsum::shared {

// Whether a call goes this way: by what must agree between ranks alone. Each rank reads what all show, so that the more
// there are, the shorter a tensor must be.
[[nodiscard]] bool is_small(const stream::Operation& operation, std::uint32_t world_size);

class SmallMember {
 public:
  // Two slots each; `peers` by rank.
  SmallMember(std::uint32_t rank, std::uint32_t world_size, SmallSlot* own, std::vector<const SmallSlot*> peers);

  // Shows this rank's values; the one before has finished. posted() is then to be published, with release order.
  void post(const stream::Operation& operation);
  [[nodiscard]] std::uint64_t posted() const { return posted_; }  // operations so far

  // `others`: theirs, by rank, copied with acquire order. Whether all are there: then the result is in the tensor. Or it
  // failed.
  [[nodiscard]] bool finish(std::span<const std::uint64_t> others);
  [[nodiscard]] const std::optional<MemberFailure>& failure() const { return failure_; }
  [[nodiscard]] RankSet missing(std::span<const std::uint64_t> others) const;

 private:
  std::uint32_t rank_, world_size_;
  SmallSlot* own_;
  std::vector<const SmallSlot*> peers_;
  stream::Operation operation_;
  std::uint32_t signature_ = 0;
  std::uint64_t posted_ = 0;
  std::optional<MemberFailure> failure_;
};

}  // namespace netsum::shared
