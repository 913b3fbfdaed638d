#include "routes.h"

#include <array>

namespace netsum::torch_backend {

const char* to_string(Call call) {
  switch (call) {
    case Call::all_reduce:
      return "all_reduce";
    case Call::all_reduce_coalesced:
      return "all_reduce_coalesced";
    case Call::broadcast:
      return "broadcast";
    case Call::reduce:
      return "reduce";
    case Call::reduce_scatter:
      return "reduce_scatter";
    case Call::reduce_scatter_tensor:
      return "reduce_scatter_tensor";
    case Call::all_gather:
      return "all_gather";
    case Call::all_gather_coalesced:
      return "all_gather_coalesced";
    case Call::all_gather_into_tensor:
      return "all_gather_into_tensor";
    case Call::gather:
      return "gather";
    case Call::scatter:
      return "scatter";
    case Call::all_to_all:
      return "all_to_all";
    case Call::all_to_all_single:
      return "all_to_all_single";
    case Call::send:
      return "send";
    case Call::recv:
      return "recv";
    case Call::barrier:
      return "barrier";
  }
  return "?";
}

namespace {

// What the switch does in a collective.
enum class InNetwork : std::uint8_t { nothing, moves, reduces };

InNetwork in_network(Call call) {
  switch (call) {
    case Call::all_reduce:
    case Call::all_reduce_coalesced:
    case Call::reduce:
    case Call::reduce_scatter:
    case Call::reduce_scatter_tensor:
      return InNetwork::reduces;
    case Call::broadcast:
    case Call::all_gather:
    case Call::all_gather_into_tensor:
      return InNetwork::moves;
    default:
      return InNetwork::nothing;
  }
}

struct NamedOp {
  c10d::ReduceOp::RedOpType op;
  std::optional<ReduceOp> by_switch;
  const char* name;
};

constexpr std::array<NamedOp, 9> operations{{{c10d::ReduceOp::SUM, ReduceOp::sum, "SUM"},
                                             {c10d::ReduceOp::AVG, ReduceOp::avg, "AVG"},
                                             {c10d::ReduceOp::PRODUCT, ReduceOp::product, "PRODUCT"},
                                             {c10d::ReduceOp::MIN, ReduceOp::min, "MIN"},
                                             {c10d::ReduceOp::MAX, ReduceOp::max, "MAX"},
                                             {c10d::ReduceOp::BAND, ReduceOp::bit_and, "BAND"},
                                             {c10d::ReduceOp::BOR, ReduceOp::bit_or, "BOR"},
                                             {c10d::ReduceOp::BXOR, ReduceOp::bit_xor, "BXOR"},
                                             {c10d::ReduceOp::PREMUL_SUM, std::nullopt, "PREMUL_SUM"}}};

const NamedOp* find(const c10d::ReduceOp& op) {
  for (const NamedOp& each : operations) {
    if (each.op == op) return &each;
  }
  return nullptr;
}

}  // namespace

std::optional<DType> switch_dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::float32;
    case at::kInt:
      return DType::int32;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kDouble:
      return DType::float64;
    case at::kLong:
      return DType::int64;
    case at::kShort:
      return DType::int16;
    case at::kChar:
      return DType::int8;
    case at::kByte:
      return DType::uint8;
    case at::kBool:
      return DType::boolean;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> switch_op(const c10d::ReduceOp& op) {
  const NamedOp* const found = find(op);
  return found == nullptr ? std::nullopt : found->by_switch;
}

std::string why_not_by_switch(Call call, const std::vector<at::Tensor>& tensors, const c10d::ReduceOp* op,
                              const std::function<bool(ReduceOp, DType)>& reduces) {
  const InNetwork does = in_network(call);
  if (does == InNetwork::nothing) return std::string("no ") + to_string(call) + " in the network";
  if (tensors.empty()) return "no tensors";
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() != at::kStrided) return "not a dense tensor";
  }
  if (does == InNetwork::moves) return {};
  const NamedOp* const named = find(*op);
  for (const at::Tensor& tensor : tensors) {
    const auto dtype = switch_dtype(tensor);
    if (named == nullptr || !named->by_switch || !dtype || !reduces(*named->by_switch, *dtype)) {
      return std::string(named == nullptr ? "an unknown operation" : named->name) + " of " +
             c10::toString(tensor.scalar_type());
    }
  }
  return {};
}

}  // namespace netsum::torch_backend
