#include "bindings/nccl/types.h"

#include <algorithm>
#include <array>
#include <string>

#include "netsum/error.h"

namespace netsum::nccl {
namespace {

struct Type {
  DataType nccl;
  DType ours;
  // An unsigned type that netsum sums as the signed one, which gives the same bits for sums alone.
  bool sums_only = false;
};
constexpr std::array types = {
    Type{DataType::int32, DType::int32},       Type{DataType::uint32, DType::int32, true},
    Type{DataType::float16, DType::float16},   Type{DataType::float32, DType::float32},
    Type{DataType::bfloat16, DType::bfloat16},
};

struct Operator {
  RedOp nccl;
  ReduceOp ours;
};
constexpr std::array operators = {
    Operator{RedOp::sum, ReduceOp::sum},
    Operator{RedOp::avg, ReduceOp::avg},
};

}  // namespace

std::optional<Reduction> reduction_of(DataType type, RedOp op) {
  const auto* const row = std::find_if(types.begin(), types.end(), [&](const Type& each) { return each.nccl == type; });
  const auto* const column =
      std::find_if(operators.begin(), operators.end(), [&](const Operator& each) { return each.nccl == op; });
  if (row == types.end() || column == operators.end()) return std::nullopt;
  if (row->sums_only && column->ours != ReduceOp::sum) return std::nullopt;
  return Reduction{row->ours, column->ours};
}

Reduction supported(DataType type, RedOp op) {
  if (const auto found = reduction_of(type, op)) return *found;
  throw Error(ErrorCode::bad_argument, "netsum does not reduce NCCL's data type " + std::to_string(static_cast<int>(type)) +
                                           " by its operator " + std::to_string(static_cast<int>(op)) +
                                           ": reduceSupport() says so");
}

}  // namespace netsum::nccl
