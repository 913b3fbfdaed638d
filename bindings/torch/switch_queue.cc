#include "switch_queue.h"

#include <cstring>
#include <utility>

#include "routes.h"

namespace netsum::torch_backend {

namespace {

void let_go(void* memory) {
  delete static_cast<TensorMemory*>(memory);
}

CallOptions call_of(std::optional<std::chrono::milliseconds> timeout) {
  CallOptions call;
  if (timeout) call.deadline = *timeout;
  return call;
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
  return submit(tensors, std::string("all_reduce(") + to_string(op) + ")", type, [&](const at::Tensor& contiguous) {
    const auto elements = static_cast<std::size_t>(contiguous.numel());
    return communicator_.all_reduce_async({contiguous.data_ptr(), elements, *switch_dtype(contiguous)}, op,
                                          call_of(timeout));
  });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::broadcast(const std::vector<at::Tensor>& tensors, std::uint32_t root,
                                                     std::optional<std::chrono::milliseconds> timeout) {
  const std::string what = "broadcast from rank " + std::to_string(root);
  return submit(tensors, what, c10d::OpType::BROADCAST, [&](const at::Tensor& contiguous) {
    const std::span bytes(static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes());
    return communicator_.broadcast_async(bytes, root, call_of(timeout));
  });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::submit(const std::vector<at::Tensor>& tensors, std::string what,
                                                  c10d::OpType type, const Issue& issue) {
  what += describe(tensors);
  Pending pending;
  pending.work = c10::make_intrusive<GroupWork>(static_cast<int>(communicator_.rank()), type, std::move(what), tensors);
  pending.reduces = type != c10d::OpType::BROADCAST;
  const auto work = pending.work;
  const std::lock_guard issuing(issue_);
  for (const at::Tensor& tensor : tensors) {
    at::Tensor contiguous = tensor.detach().contiguous();
    bytes_ += contiguous.nbytes();
    ++operations_;
    Work lent = issue(contiguous);
    pending.parts.push_back({tensor.detach(), std::move(contiguous), std::move(lent)});
  }
  if (pending.reduces) stopwatch_.begin();
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
  if (next.reduces) stopwatch_.end();
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
