// The handle that a backend operation returns to PyTorch: waited for, polled, or chained on as a future.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// torch 2.6 and later: Work::getFutureResult().
#define NETSUM_TORCH_HAS_FUTURE_RESULT (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 6))

namespace netsum::torch_backend {

// " of 3 Float, 5 Int": for errors.
[[nodiscard]] std::string describe(const std::vector<at::Tensor>& tensors);

// A kind of operation as the profiler shows it: "netsum:all_reduce".
[[nodiscard]] const char* title_of(c10d::OpType type);

// Ended once, from a native thread without Python's interpreter lock. If outputs are in a device's memory, "ended" means
// that what writes them has been given to the streams that are current in complete(); wait() then makes the caller's current
// streams wait for it, and no thread; so does synchronize(). The tensors are kept by value until then. wait() does not wait
// for the future's callbacks: they may wait for operations that end later.
class GroupWork final : public c10d::Work {
 public:
  // `what` names the operation in the error of a wait() that timed out. `profiled`: what it reads, if it is one that a
  // profiler shall see from now until its end; Gloo's are seen as Gloo's own.
  GroupWork(int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs,
            const std::vector<at::Tensor>* profiled = nullptr);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { static_cast<void>(wait()); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
#if NETSUM_TORCH_HAS_FUTURE_RESULT
  // How the operation ended, as ProcessGroupNCCL says it: a c10d::WorkResult, never an error.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return how_;
  }
#endif

  // Elements [first, last) of the tensor of an all-reduce whose sums are without this rank, which was late with its call.
  // Set before the end, read after it.
  using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;
  [[nodiscard]] const Ranges& left_out() const {
    return left_out_;
  }
  void leave_out(Ranges ranges) {
    left_out_ = std::move(ranges);
  }

  // The futures' callbacks run on this thread, before these functions return. `then` runs first, once waiters have been
  // woken: other works may end from then on.
  void complete(std::function<void()> then = {});
  void fail(std::exception_ptr error, std::function<void()> then = {});

 private:
  void check_process() const;
  void tell_how();

  const pid_t owner_ = getpid();
  const std::string what_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
#if NETSUM_TORCH_HAS_FUTURE_RESULT
  const c10::intrusive_ptr<c10::ivalue::Future> how_ = c10::make_intrusive<c10::ivalue::Future>(c10::AnyEnumType::get());
#endif
  std::exception_ptr error_;
  std::function<void()> then_;
  Ranges left_out_;
};

// Several works as one, which ends when all have.
class WorkList final : public c10d::Work {
 public:
  WorkList(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(rank, c10d::OpType::UNKNOWN), works_(std::move(works)) {}

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;  // for each of them so long
  void synchronize() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace netsum::torch_backend
