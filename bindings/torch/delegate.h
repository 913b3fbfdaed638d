// Gloo does what the switch does not; operations that PyTorch's Gloo backend refuses are built from ones that it has.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <optional>
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

// A dense copy in a type that Gloo reduces and that holds every value of the tensor's type; the tensor itself if it is such
// a one. Throws, naming the dtype, if there is none. MIN and MAX of floats are those of integers in the same order, as the
// switch has them: -0 is below +0, and NaN stays; Gloo's own differ from rank to rank.
[[nodiscard]] at::Tensor as_reducible(const at::Tensor& tensor, const c10d::ReduceOp& op);
// From what as_reducible() gave and Gloo has reduced (AVG: summed) to the tensor.
void take_reduced(const at::Tensor& tensor, at::Tensor reduced, const c10d::ReduceOp& op, int ranks);

// Whether the operation is a sum over complex tensors. Throws for other operations on such.
[[nodiscard]] bool sums_complex(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op);

// This rank's factor, if the operation is a premultiplied sum. Throws for tensors of integers.
[[nodiscard]] std::optional<double> factor_of(const c10d::ReduceOp& op, const std::vector<at::Tensor>& tensors);

// In place, in double.
void multiply(const std::vector<at::Tensor>& tensors, double by);

// A work that ends after all of `inner` and then `then`; both run on `threads`, as Gloo has few threads. `outputs`: its
// result.
c10::intrusive_ptr<c10d::Work> after(CallbackThreads& threads, const std::vector<c10::intrusive_ptr<c10d::Work>>& inner,
                                     int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs,
                                     std::function<void()> then = {}, std::function<void()> finally = {});

// The work of a message that writes `outputs` once it has been waited for: Gloo's have no future.
c10::intrusive_ptr<c10d::Work> written(c10::intrusive_ptr<c10d::Work> message, Outputs outputs);

}  // namespace netsum::torch_backend
