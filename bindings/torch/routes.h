// Which calls the switch takes: a table of collective, operation and dtype. Everything else goes to Gloo, for a reason in
// words.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "netsum/types.h"

namespace netsum::torch_backend {

// PyTorch's collectives, as users call them.
enum class Call : std::uint8_t {
  all_reduce,
  all_reduce_coalesced,
  broadcast,
  reduce,
  reduce_scatter,
  reduce_scatter_tensor,
  all_gather,
  all_gather_coalesced,
  all_gather_into_tensor,
  gather,
  scatter,
  all_to_all,
  all_to_all_single,
  send,
  recv,
  barrier,
};
[[nodiscard]] const char* to_string(Call call);

// The public API's value for torch's, if there is one.
[[nodiscard]] std::optional<DType> switch_dtype(const at::Tensor& tensor);
[[nodiscard]] std::optional<ReduceOp> switch_op(const c10d::ReduceOp& op);

// Why the switch does not take a call with these tensors; empty if it takes it. `op`: of collectives that reduce; `reduces`:
// what the protocol has. Depends only on what all ranks have in common, never on one rank's state.
[[nodiscard]] std::string why_not_by_switch(Call call, const std::vector<at::Tensor>& tensors, const c10d::ReduceOp* op,
                                            const std::function<bool(ReduceOp, DType)>& reduces);

}  // namespace netsum::torch_backend
