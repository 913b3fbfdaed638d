#include "work.h"

#include <ATen/core/ivalue.h>

#include <stdexcept>
#include <utility>

namespace netsum::torch_backend {

GroupWork::GroupWork(int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs)
    : Work(rank, type),
      what_(std::move(what)),
      outputs_(std::move(outputs)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (timeout == kNoTimeout) {
    cv_.wait(lock, [this] { return completed_; });  // bounded: the operation has a deadline of its own
  } else if (!cv_.wait_for(lock, timeout, [this] { return completed_; })) {
    throw std::runtime_error("netsum: rank " + std::to_string(rank_) + " waited " + std::to_string(timeout.count()) +
                             " ms for " + what_ + ", which is still under way");
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

std::vector<at::Tensor> GroupWork::result() {
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  return future_;
}

// Callbacks of the future run before a waiter wakes, as in ProcessGroupGloo: a waiter sees what they did.
void GroupWork::complete() {
  future_->markCompleted(c10::IValue(outputs_));
  finish();
}

void GroupWork::fail(std::exception_ptr error) {
  future_->setError(error);
  finish(error);
}

}  // namespace netsum::torch_backend
