// All-reduces through the switch, for one process group: issued in call order, and completed in it.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
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

// The words of the public API for torch's, or nothing where the switch does not sum that.
[[nodiscard]] std::optional<DType> switch_dtype(const at::Tensor& tensor);
[[nodiscard]] std::optional<ReduceOp> switch_op(const c10d::ReduceOp& op);

class SwitchQueue {
 public:
  // Works end, and their futures' callbacks run, on `threads`, which outlive the queue and run callbacks after its end.
  SwitchQueue(Communicator communicator, Stopwatch& stopwatch, CallbackThreads& threads);
  ~SwitchQueue();  // fails what is under way, then leaves the job
  SwitchQueue(const SwitchQueue&) = delete;
  SwitchQueue& operator=(const SwitchQueue&) = delete;

  // Every tensor has a switch_dtype. One that is not contiguous travels as a contiguous copy.
  c10::intrusive_ptr<GroupWork> all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op,
                                           std::optional<std::chrono::milliseconds> timeout, c10d::OpType type);

  // Moves what the tensor is a view of, with all other views of it, to memory from Communicator::allocate(), and what lies
  // there with it; once. A call that all ranks make, like all_reduce().
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
    at::Tensor tensor, contiguous;  // the second is lent; it is the first, or a copy of it
    Work lent;
  };
  struct Pending {
    std::vector<Part> parts;
    c10::intrusive_ptr<GroupWork> work;
  };

  void complete_next();

  Communicator communicator_;
  Stopwatch& stopwatch_;
  CallbackThreads& threads_;
  std::atomic<std::uint64_t> operations_{0}, bytes_{0};
  std::atomic<bool> failed_{false};

  std::mutex issue_;          // a communicator takes calls from one thread at a time
  mutable std::mutex mutex_;  // of the four below
  std::condition_variable all_ended_;
  std::deque<Pending> pending_;
  c10::intrusive_ptr<GroupWork> last_;
  bool completing_ = false;  // there is a thread in complete_next() whose work has not ended
};

}  // namespace netsum::torch_backend
