// The handle that a backend operation returns to PyTorch: waited for, polled, or chained on as a future.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace netsum::torch_backend {

// Ended once, from a native thread without Python's interpreter lock. The tensors are kept by value until then. wait() does
// not wait for the future's callbacks: they may wait for operations that end later.
class GroupWork final : public c10d::Work {
 public:
  // `what` names the operation in the error of a wait() that timed out.
  GroupWork(int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // The future's callbacks run on this thread, before these functions return. `then` runs first, once waiters have been
  // woken: other works may end from then on.
  void complete(std::function<void()> then = {});
  void fail(std::exception_ptr error, std::function<void()> then = {});

 private:
  void check_process() const;

  const pid_t owner_ = getpid();
  const std::string what_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::exception_ptr error_;
  std::function<void()> then_;
};

}  // namespace netsum::torch_backend
