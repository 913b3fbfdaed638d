#include "work.h"

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "netsum/error.h"
#include "python_errors.h"

namespace py = pybind11;

namespace netsum::torch_backend {

std::string describe(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += (text.empty() ? " of " : ", ") + std::to_string(tensor.numel()) + " " + c10::toString(tensor.scalar_type());
  }
  return text;
}

const char* title_of(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::ALLREDUCE:
      return "netsum:all_reduce";
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "netsum:allreduce_coalesced";
    case c10d::OpType::REDUCE:
      return "netsum:reduce";
    case c10d::OpType::BROADCAST:
      return "netsum:broadcast";
    case c10d::OpType::ALLGATHER:
      return "netsum:all_gather";
    case c10d::OpType::_ALLGATHER_BASE:
      return "netsum:_all_gather_base";
    case c10d::OpType::REDUCE_SCATTER:
      return "netsum:reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return "netsum:_reduce_scatter_base";
    case c10d::OpType::GATHER:
      return "netsum:gather";
    case c10d::OpType::SCATTER:
      return "netsum:scatter";
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE:
      return "netsum:all_to_all";
    case c10d::OpType::SEND:
      return "netsum:send";
    case c10d::OpType::RECV:
      return "netsum:recv";
    case c10d::OpType::BARRIER:
      return "netsum:barrier";
    default:
      return "netsum:coalesced";
  }
}

namespace {

constexpr std::chrono::milliseconds signals_every{100};

// Python runs the handlers of signals on its main thread: if that waits here, Ctrl-C would act at the deadline.
void look_for_signals() {
  if (gettid() != getpid() || Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.device().is_cpu()) devices.push_back(tensor.device());
  }
  return devices;
}

}  // namespace

GroupWork::GroupWork(int rank, c10d::OpType type, std::string what, std::vector<at::Tensor> outputs,
                     const std::vector<at::Tensor>* profiled)
    : Work(rank, type, profiled == nullptr ? nullptr : title_of(type),
           profiled == nullptr ? std::vector<at::Tensor>{} : *profiled),
      what_(std::move(what)),
      outputs_(std::move(outputs)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices_of(outputs_))) {
  // The future's first callback. Only complete() and fail() run callbacks.
  future_->addCallback([this](c10::ivalue::Future&) {
    finish(error_);
    if (then_) std::exchange(then_, nullptr)();
    tell_how();
  });
}

void GroupWork::tell_how() {
#if NETSUM_TORCH_HAS_FUTURE_RESULT
  auto result = c10d::WorkResult::SUCCESS;
  if (error_) {
    const bool timed_out = code_of(error_, ErrorCode::internal) == ErrorCode::deadline;
    result = timed_out ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
  }
  how_->markCompleted(c10::IValue(static_cast<std::uint8_t>(result)));
#endif
}

// In a child of fork() no thread ends the work, and mutexes that other threads held stay locked.
void GroupWork::check_process() const {
  if (getpid() == owner_) return;
  throw std::runtime_error("netsum: " + what_ + " was inherited through fork() from process " + std::to_string(owner_) +
                           ": wait for it there");
}

bool GroupWork::isCompleted() {
  check_process();
  return Work::isCompleted();
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  check_process();
  std::unique_lock lock(mutex_);
  using Clock = std::chrono::steady_clock;
  // Without a timeout it is bounded as well: the operation has a deadline.
  const auto until = timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
  while (!cv_.wait_until(lock, std::min(until, Clock::now() + signals_every), [this] { return completed_; })) {
    if (Clock::now() >= until) {
      throw std::runtime_error("netsum: rank " + std::to_string(rank_) + " waited " + std::to_string(timeout.count()) +
                               " ms for " + what_ + ", which is still in progress");
    }
    lock.unlock();
    look_for_signals();
    lock.lock();
  }
  if (exception_) std::rethrow_exception(exception_);
  lock.unlock();
  if (!future_->devices().empty()) future_->wait();  // returns at once: the current streams wait for the outputs
  return true;
}

std::vector<at::Tensor> GroupWork::result() {
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  return future_;
}

void GroupWork::complete(std::function<void()> then) {
  then_ = std::move(then);
  future_->markCompleted(c10::IValue(outputs_));
}

void GroupWork::fail(std::exception_ptr error, std::function<void()> then) {
  error_ = error;
  then_ = std::move(then);
  future_->setError(for_python(error));
}

bool WorkList::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& each) { return each->isCompleted(); });
}

bool WorkList::wait(std::chrono::milliseconds timeout) {
  for (const auto& each : works_) each->wait(timeout);
  return true;
}

void WorkList::synchronize() {
  for (const auto& each : works_) each->synchronize();
}

}  // namespace netsum::torch_backend
