// What the switch does not do, done by Gloo; and where PyTorch's Gloo backend refuses, done in terms of what it does.
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

// A copy in a type that Gloo adds without losing what the tensor's own type holds; the tensor itself if that is one.
// Throws, naming the dtype, where there is none.
[[nodiscard]] at::Tensor as_summable(const at::Tensor& tensor);

// Divides in place; integers round toward zero, as they do on the switch.
void divide(at::Tensor& tensor, int by);

// A work that ends after `inner`, and after `then`; both on `threads`, as Gloo's own are few. `outputs` are its result.
c10::intrusive_ptr<c10d::Work> after(CallbackThreads& threads, const c10::intrusive_ptr<c10d::Work>& inner, int rank,
                                     c10d::OpType type, std::string what, std::vector<at::Tensor> outputs,
                                     std::function<void()> then, std::function<void()> finally = {});

}  // namespace netsum::torch_backend
