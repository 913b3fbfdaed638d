// Gloo does what the switch does not; operations that PyTorch's Gloo backend refuses are built from ones that it has.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "callback_threads.h"
#include "dense.h"
#include "work.h"

namespace netsum::torch_backend {

// Gloo moves and adds fewer element types than PyTorch has.
[[nodiscard]] bool gloo_knows(at::ScalarType type);

// What a call reads, under a type that Gloo moves: for operations that copy and do not compute. Dense, for Gloo takes a
// tensor's memory as it lies, and no strides.
[[nodiscard]] at::Tensor as_movable(const at::Tensor& tensor);
[[nodiscard]] std::vector<at::Tensor> as_movable(const std::vector<at::Tensor>& tensors);
[[nodiscard]] std::vector<std::vector<at::Tensor>> as_movable(const std::vector<std::vector<at::Tensor>>& lists);

// What a call writes: dense tensors, of which those that are copies are written to the caller's at its end.
class Outputs {
 public:
  [[nodiscard]] at::Tensor dense(const at::Tensor& tensor);  // with the tensor's values, which the call may read
  [[nodiscard]] at::Tensor movable(const at::Tensor& tensor) { return as_movable(dense(tensor)); }
  [[nodiscard]] std::vector<at::Tensor> movable(const std::vector<at::Tensor>& tensors);
  [[nodiscard]] std::vector<std::vector<at::Tensor>> movable(const std::vector<std::vector<at::Tensor>>& lists);

  // Of complex tensors the real and imaginary parts, which sums are of; the others as they are.
  [[nodiscard]] std::vector<at::Tensor> parts(const std::vector<at::Tensor>& tensors);

  [[nodiscard]] bool any() const { return !copies_.empty(); }
  void write() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // the caller's, and what stands for it
};

// A dense copy in a type that Gloo adds and that holds every value of the tensor's type; the tensor itself if it is such a
// one. Throws, naming the dtype, if there is none.
[[nodiscard]] at::Tensor as_summable(const at::Tensor& tensor);

// Whether the operation is a sum over complex tensors. Throws for other operations on such.
[[nodiscard]] bool sums_complex(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);

// Divides in place; integers round toward zero, as they do on the switch.
void divide(at::Tensor& tensor, int by);

// Multiplies in place by the factor of this rank's premultiplied sum. Throws for tensors of integers.
void premultiply(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);

// A work that ends after all of `inner` and then `then`; both run on `threads`, as Gloo has few threads. `outputs`: its
// result.
c10::intrusive_ptr<c10d::Work> after(CallbackThreads& threads, const std::vector<c10::intrusive_ptr<c10d::Work>>& inner,
                                     int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs,
                                     std::function<void()> then = {}, std::function<void()> finally = {});

// The work of a message that writes `outputs` once it has been waited for: Gloo's have no future.
c10::intrusive_ptr<c10d::Work> written(c10::intrusive_ptr<c10d::Work> message, Outputs outputs);

}  // namespace netsum::torch_backend
