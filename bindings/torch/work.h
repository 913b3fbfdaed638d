// What an operation of the backend returns to PyTorch: waited for, polled, or chained on as a future.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <exception>
#include <string>
#include <vector>

namespace netsum::torch_backend {

// Ended once, from a native thread and without Python's interpreter lock. The tensors are kept by value until then.
class GroupWork final : public c10d::Work {
 public:
  // `what` names the operation in the error of a wait() that ran out of time.
  GroupWork(int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  void complete();
  void fail(std::exception_ptr error);

 private:
  const std::string what_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace netsum::torch_backend
