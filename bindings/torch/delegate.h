// Gloo does what the switch does not; operations that PyTorch's Gloo backend refuses are built from ones that it has.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <string>
#include <vector>

#include "callback_threads.h"
#include "work.h"

namespace netsum::torch_backend {

// Gloo moves and adds fewer element types than PyTorch has.
[[nodiscard]] bool gloo_knows(at::ScalarType type);

// The same memory under a type that Gloo moves: for operations that copy and do not compute.
[[nodiscard]] at::Tensor as_movable(const at::Tensor& tensor);
[[nodiscard]] std::vector<at::Tensor> as_movable(const std::vector<at::Tensor>& tensors);
[[nodiscard]] std::vector<std::vector<at::Tensor>> as_movable(const std::vector<std::vector<at::Tensor>>& lists);

// A copy in a type that Gloo adds and that holds every value of the tensor's type; the tensor itself if its type is one.
// Throws, naming the dtype, if there is none.
[[nodiscard]] at::Tensor as_summable(const at::Tensor& tensor);

// Divides in place; integers round toward zero, as they do on the switch.
void divide(at::Tensor& tensor, int by);

// Multiplies in place by the factor of this rank's premultiplied sum. Throws for tensors of integers.
void premultiply(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);

// A work that ends after all of `inner` and then `then`; both run on `threads`, as Gloo has few threads. `outputs`: its
// result.
c10::intrusive_ptr<c10d::Work> after(CallbackThreads& threads, const std::vector<c10::intrusive_ptr<c10d::Work>>& inner,
                                     int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs,
                                     std::function<void()> then = {}, std::function<void()> finally = {});

}  // namespace netsum::torch_backend
