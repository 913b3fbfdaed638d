// Which of NCCL's element types and operators netsum sums.
#pragma once

#include <cstddef>
#include <optional>

#include "bindings/nccl/abi.h"
#include "netsum/types.h"

namespace netsum::nccl {

struct Reduction {
  DType dtype;
  ReduceOp op;
};

// What reduceSupport() answers by; none: netsum does not sum these.
[[nodiscard]] std::optional<Reduction> reduction_of(DataType type, RedOp op);
// Throws Error: bad_argument, which names both.
[[nodiscard]] Reduction supported(DataType type, RedOp op);

}  // namespace netsum::nccl
