// Operations through the switch, for one process group: issued and completed in call order.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "callback_threads.h"
#include "netsum/communicator.h"
#include "stopwatch.h"
#include "work.h"

namespace netsum::torch_backend {

class SwitchQueue {
 public:
  // Works end and futures' callbacks run on `threads`, which outlive the queue and still run callbacks after its end.
  SwitchQueue(Communicator communicator, Stopwatch& stopwatch, CallbackThreads& threads);
  ~SwitchQueue();  // fails pending operations, then leaves the job
  SwitchQueue(const SwitchQueue&) = delete;
  SwitchQueue& operator=(const SwitchQueue&) = delete;

  // In place, each tensor in an operation of its own. A non-contiguous tensor travels as a contiguous copy. Every tensor of
  // an all-reduce has a switch_dtype().
  c10::intrusive_ptr<GroupWork> all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op,
                                           std::optional<std::chrono::milliseconds> timeout, c10d::OpType type);
  c10::intrusive_ptr<GroupWork> broadcast(const std::vector<at::Tensor>& tensors, std::uint32_t root,
                                          std::optional<std::chrono::milliseconds> timeout);

  // Moves the tensor's storage, with its contents and all views on it, to memory from Communicator::allocate(); once. All
  // ranks make this call, like all_reduce().
  void move_to_allocated(const at::Tensor& tensor);

  // The last work that was issued; it ends after all others. Null if there was none.
  [[nodiscard]] c10::intrusive_ptr<GroupWork> last() const;

  [[nodiscard]] bool failed() const { return failed_.load(); }  // an operation ended in an error
  [[nodiscard]] Statistics statistics() const { return communicator_.statistics(); }
  [[nodiscard]] std::string placement() const { return communicator_.placement(); }
  [[nodiscard]] std::uint64_t operations() const { return operations_.load(); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_.load(); }

 private:
  struct Part {
    at::Tensor tensor, contiguous;  // `contiguous` is lent; it is `tensor` or a copy
    Work lent;
  };
  struct Pending {
    std::vector<Part> parts;
    c10::intrusive_ptr<GroupWork> work;
    bool reduces = false;
  };
  using Issue = std::function<Work(const at::Tensor& contiguous)>;

  c10::intrusive_ptr<GroupWork> submit(const std::vector<at::Tensor>& tensors, std::string what, c10d::OpType type,
                                       const Issue& issue);
  void complete_next();

  Communicator communicator_;
  Stopwatch& stopwatch_;
  CallbackThreads& threads_;
  std::atomic<std::uint64_t> operations_{0}, bytes_{0};
  std::atomic<bool> failed_{false};

  std::mutex issue_;          // a communicator takes calls from one thread at a time
  mutable std::mutex mutex_;  // guards the four below
  std::condition_variable all_ended_;
  std::deque<Pending> pending_;
  c10::intrusive_ptr<GroupWork> last_;
  bool completing_ = false;  // a thread is in complete_next(), and its work has not ended
};

}  // namespace netsum::torch_backend
