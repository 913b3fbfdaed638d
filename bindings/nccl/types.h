// Which of NCCL's element types and operators netsum sums.
#pragma once

#include <cstddef>
#include <optional>

#include "bindings/nccl/abi.h"
#include "netsum/communicator.h"

namespace netsum::nccl {

struct Reduction {
  DType dtype;
  ReduceOp op;
};

// What reduceSupport() answers by; none: netsum does not reduce these. It is not told which group NCCL asks for.
[[nodiscard]] std::optional<Reduction> reduction_of(DataType type, RedOp op);
// Throws Error: bad_argument, which names both.
[[nodiscard]] Reduction supported(DataType type, RedOp op);

// A group of this process has a communicator that does not have every reduction: from now on, no other is named.
void know_of(const Communicator& communicator);

}  // namespace netsum::nccl
