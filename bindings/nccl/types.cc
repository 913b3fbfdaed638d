#include "bindings/nccl/types.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "netsum/error.h"

namespace netsum::nccl {
namespace {

struct Type {
  DataType nccl;
  DType ours;
  // An unsigned type as the signed one: sums and products have the same bits, and nothing else has.
  bool modular = false;
};
constexpr std::array types = {
    Type{DataType::int8, DType::int8},       Type{DataType::uint8, DType::uint8},
    Type{DataType::int32, DType::int32},     Type{DataType::uint32, DType::int32, true},
    Type{DataType::int64, DType::int64},     Type{DataType::uint64, DType::int64, true},
    Type{DataType::float16, DType::float16}, Type{DataType::float32, DType::float32},
    Type{DataType::float64, DType::float64}, Type{DataType::bfloat16, DType::bfloat16},
};

struct Operator {
  RedOp nccl;
  ReduceOp ours;
};
constexpr std::array operators = {
    Operator{RedOp::sum, ReduceOp::sum}, Operator{RedOp::product, ReduceOp::product}, Operator{RedOp::max, ReduceOp::max},
    Operator{RedOp::min, ReduceOp::min}, Operator{RedOp::avg, ReduceOp::avg},
};

// [type][operator]: whether a communicator of this process lacks it.
std::array<std::array<std::atomic<bool>, operators.size()>, types.size()> lacked{};

}  // namespace

std::optional<Reduction> reduction_of(DataType type, RedOp op) {
  const auto* const row = std::find_if(types.begin(), types.end(), [&](const Type& each) { return each.nccl == type; });
  const auto* const column =
      std::find_if(operators.begin(), operators.end(), [&](const Operator& each) { return each.nccl == op; });
  if (row == types.end() || column == operators.end()) return std::nullopt;
  if (row->modular && column->ours != ReduceOp::sum && column->ours != ReduceOp::product) return std::nullopt;
  if (lacked[static_cast<std::size_t>(row - types.begin())][static_cast<std::size_t>(column - operators.begin())]) {
    return std::nullopt;
  }
  return Reduction{row->ours, column->ours};
}

Reduction supported(DataType type, RedOp op) {
  if (const auto found = reduction_of(type, op)) return *found;
  throw Error(ErrorCode::bad_argument, "netsum does not reduce NCCL's data type " + std::to_string(static_cast<int>(type)) +
                                           " by its operator " + std::to_string(static_cast<int>(op)) +
                                           ": reduceSupport() says so");
}

void know_of(const Communicator& communicator) {
  for (std::size_t type = 0; type < types.size(); ++type) {
    for (std::size_t op = 0; op < operators.size(); ++op) {
      if (!communicator.can_reduce(operators[op].ours, types[type].ours)) lacked[type][op] = true;
    }
  }
}

}  // namespace netsum::nccl
