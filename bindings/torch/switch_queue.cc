#include "switch_queue.h"

#include <cstring>
#include <utility>

namespace netsum::torch_backend {

std::optional<DType> switch_dtype(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.device().is_cpu()) return std::nullopt;
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::float32;
    case at::kInt:
      return DType::int32;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> switch_op(const c10d::ReduceOp& op) {
  if (op == c10d::ReduceOp::SUM) return ReduceOp::sum;
  if (op == c10d::ReduceOp::AVG) return ReduceOp::avg;
  return std::nullopt;
}

namespace {

void let_go(void* memory) {
  delete static_cast<TensorMemory*>(memory);
}

}  // namespace

SwitchQueue::SwitchQueue(Communicator communicator, Stopwatch& stopwatch, CallbackThreads& threads)
    : communicator_(std::move(communicator)), stopwatch_(stopwatch), threads_(threads) {}

SwitchQueue::~SwitchQueue() {
  communicator_.abort("the process group was destroyed");
  std::unique_lock lock(mutex_);
  all_ended_.wait(lock, [this] { return pending_.empty() && !completing_; });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op,
                                                      std::optional<std::chrono::milliseconds> timeout, c10d::OpType type) {
  CallOptions call;
  if (timeout) call.deadline = *timeout;
  std::string what = std::string("all_reduce(") + to_string(op) + ") of ";
  for (const at::Tensor& tensor : tensors) {
    what +=
        (&tensor == tensors.data() ? "" : ", ") + std::to_string(tensor.numel()) + " " + to_string(*switch_dtype(tensor));
  }

  Pending pending;
  pending.work = c10::make_intrusive<GroupWork>(static_cast<int>(communicator_.rank()), type, std::move(what), tensors);
  const auto work = pending.work;
  const std::lock_guard issuing(issue_);
  for (const at::Tensor& tensor : tensors) {
    at::Tensor contiguous = tensor.detach().contiguous();
    const auto elements = static_cast<std::size_t>(contiguous.numel());
    const TensorView view{contiguous.data_ptr(), elements, *switch_dtype(tensor)};
    Work lent = communicator_.all_reduce_async(view, op, call);
    pending.parts.push_back({tensor.detach(), std::move(contiguous), std::move(lent)});
    bytes_ += elements * bytes_of(view.dtype);
    ++operations_;
  }
  stopwatch_.begin();
  {
    const std::lock_guard lock(mutex_);
    last_ = work;
    pending_.push_back(std::move(pending));
    if (!std::exchange(completing_, true)) threads_.post([this] { complete_next(); });
  }
  return work;
}

void SwitchQueue::move_to_allocated(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  if (storage.data_ptr().get_deleter() == &let_go) return;
  const std::lock_guard issuing(issue_);
  auto memory = std::make_unique<TensorMemory>(communicator_.allocate(storage.nbytes()));
  std::byte* const begin = memory->data();
  if (storage.nbytes() != 0) std::memcpy(begin, storage.data(), storage.nbytes());
  storage.set_data_ptr(at::DataPtr(begin, memory.release(), &let_go, at::kCPU));
}

c10::intrusive_ptr<GroupWork> SwitchQueue::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

// One thread after the other: once a work has ended, and before any callbacks run, the next work's turn begins.
void SwitchQueue::complete_next() {
  Pending next;
  {
    const std::lock_guard lock(mutex_);
    next = std::move(pending_.front());
    pending_.pop_front();
  }
  std::exception_ptr error;
  for (Part& part : next.parts) {
    try {
      part.lent.wait();
      if (!part.contiguous.is_same(part.tensor) && part.contiguous.data_ptr() != part.tensor.data_ptr()) {
        part.tensor.copy_(part.contiguous);
      }
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  stopwatch_.end();
  if (error) failed_ = true;
  const auto hand_over = [this, work = next.work] {
    const std::lock_guard lock(mutex_);
    if (last_ == work) last_.reset();  // it keeps tensors alive
    if (!pending_.empty()) {
      threads_.post([this] { complete_next(); });
    } else {
      completing_ = false;
      all_ended_.notify_all();
    }
  };
  if (error) {
    next.work->fail(error, hand_over);
  } else {
    next.work->complete(hand_over);
  }
}

}  // namespace netsum::torch_backend
