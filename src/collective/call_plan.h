// A collective call as the operations that carry it out: checked, and expressed in what the rank's protocol has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collective/rank_protocol.h"
#include "netsum/types.h"
#include "stream/operation.h"

namespace netsum::collective {

struct CollectiveCall {
  stream::Collective collective = stream::Collective::barrier;
  ReduceOp op = ReduceOp::sum;
  TensorView in{}, out{};
  std::uint32_t root = 0;
  std::optional<std::span<const std::size_t>> counts{};  // elements of each rank's part; empty: all parts are equally long
  std::optional<std::size_t> place{};                    // in a list of tensors
};

struct CallPlan {
  std::vector<stream::Operation> operations;  // in order; the caller numbers them, and adds its tag
  std::function<void()> last;                 // what is left to do once all have ended well; empty: nothing
  std::shared_ptr<std::byte> staged;          // memory that the operations use

  void finish() const {
    if (last) last();
  }
};

struct Caller {
  std::uint32_t rank = 0, world_size = 1;
  const RankTraits& traits;
  bool divides = true;  // results may differ between ranks: no result is kept for ranks that start again
};

// Whether the rank's protocol has the reduction.
[[nodiscard]] bool can_reduce(const RankTraits& traits, ReduceOp op, DType dtype);
// Whether reduce, reduce_scatter and all_gather are operations of their own.
[[nodiscard]] bool has_own_collectives(const Caller& caller);

// Throws Error: bad_argument, before anything has happened.
[[nodiscard]] CallPlan plan_of(const CollectiveCall& call, const Caller& caller, std::optional<double> factor);
// All-reduces of tensors of one type. All short ones are one operation.
[[nodiscard]] CallPlan plan_of(std::span<const TensorView> tensors, ReduceOp op, const Caller& caller,
                               std::optional<double> factor);

}  // namespace netsum::collective
