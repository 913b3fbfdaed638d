// Operations through the switch, for one process group: issued in call order. Those that reduce complete in call order, and
// so do those that spread values: of FSDP's all-gather beside its reduce-scatter neither waits for the other.
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
#include "flight_recorder.h"
#include "netsum/communicator.h"
#include "stopwatch.h"
#include "work.h"

namespace netsum::torch_backend {

class SwitchQueue {
 public:
  // Works end and futures' callbacks run on `threads`, which outlive the queue and still run callbacks after its end.
  // Errors name ranks of the group by their numbers in the world too.
  SwitchQueue(Communicator communicator, std::vector<int> world_ranks, Stopwatch& stopwatch, CallbackThreads& threads);
  ~SwitchQueue();  // fails pending operations, then leaves the job
  SwitchQueue(const SwitchQueue&) = delete;
  SwitchQueue& operator=(const SwitchQueue&) = delete;

  // Whether the switch combines tensors so.
  [[nodiscard]] bool reduces(ReduceOp op, DType dtype) const { return communicator_.can_reduce(op, dtype); }

  using Timeout = std::optional<std::chrono::milliseconds>;
  struct Settings {
    Timeout timeout;
    std::optional<double> factor;  // multiplies this rank's values before they are summed
    bool waits_for_all = false;    // CallOptions
  };
  // In place, each tensor in operations of its own. A tensor that is not dense travels as a copy. The switch
  // reduces what is reduced. An all-reduce is one of each chunk, as that of a tensor in a device's memory is: another rank
  // may have its tensor there.
  c10::intrusive_ptr<GroupWork> all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op, const Settings& settings,
                                           c10d::OpType type);
  c10::intrusive_ptr<GroupWork> reduce(const std::vector<at::Tensor>& tensors, ReduceOp op, std::uint32_t root,
                                       const Settings& settings);
  c10::intrusive_ptr<GroupWork> broadcast(const std::vector<at::Tensor>& tensors, std::uint32_t root, Timeout timeout);
  // `in` is as long as all ranks' `out`, which have so many elements.
  using Counts = std::vector<std::size_t>;
  c10::intrusive_ptr<GroupWork> reduce_scatter(const at::Tensor& in, const at::Tensor& out, const Counts& counts,
                                               ReduceOp op, const Settings& settings, c10d::OpType type);
  // `out` is as long as all ranks' `in`, which have so many elements.
  c10::intrusive_ptr<GroupWork> all_gather(const at::Tensor& in, const at::Tensor& out, Counts counts, Timeout timeout,
                                           c10d::OpType type);

  // Of host memory, which is lent until the work has ended. Its calls keep their order among those above.
  [[nodiscard]] Work all_reduce_memory(TensorView inout, ReduceOp op);

  // Moves the tensor's storage, with its contents and all views on it, to memory from Communicator::allocate(); once. All
  // ranks make this call, like all_reduce().
  void move_to_allocated(const at::Tensor& tensor);

  // Communicator::admit(), and the ranks that it let in. In a process that was let in, its first call is the others' that
  // was.
  [[nodiscard]] std::vector<std::uint32_t> admit();

  // Works that end after all that were issued.
  [[nodiscard]] std::vector<c10::intrusive_ptr<GroupWork>> last() const;

  void abort(const std::string& why = "the process group was destroyed");  // fails pending and later operations

  [[nodiscard]] bool failed() const { return failed_.load(); }  // an operation ended in an error
  [[nodiscard]] Statistics statistics() const { return communicator_.statistics(); }
  [[nodiscard]] std::uint64_t behind() const { return communicator_.behind(); }
  [[nodiscard]] std::vector<std::uint32_t> members() const;  // of the latest reduction's result: Work::members()
  [[nodiscard]] std::string placement() const { return communicator_.placement(); }
  [[nodiscard]] std::uint64_t operations() const { return operations_.load(); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_.load(); }
  // What was done; who issues by all_reduce_memory() adds to it.
  [[nodiscard]] const std::shared_ptr<FlightRecorder>& flights() const { return flights_; }

 private:
  struct Transfer {
    at::Tensor in, out;  // the same, or apart
  };
  struct Loan {
    at::Tensor in, out;  // lent, dense
    at::Tensor target;   // gets `out`; it is `out`, or the caller's tensor
    std::vector<Work> works;
  };
  struct Pending {
    std::vector<Loan> loans;
    c10::intrusive_ptr<GroupWork> work;
    bool reduces = false;
    std::uint64_t flight = 0;
  };
  using Issue = std::function<std::vector<Work>(const at::Tensor& in, const at::Tensor& out)>;

  // Works that end one after the other.
  struct Line {
    std::deque<Pending> pending;
    c10::intrusive_ptr<GroupWork> last;
    bool completing = false;  // a thread is in complete_next(), and its work has not ended
  };

  c10::intrusive_ptr<GroupWork> submit(const std::vector<Transfer>& transfers, std::string what, c10d::OpType type,
                                       bool reduces, Timeout timeout, const Issue& issue);
  void complete_next(Line& line);
  [[nodiscard]] GroupWork::Ranges left_out_of(const Loan& all_reduced) const;
  [[nodiscard]] Error named_in_world(const Error& error) const;

  Communicator communicator_;
  const std::vector<int> world_ranks_;
  Stopwatch& stopwatch_;
  CallbackThreads& threads_;
  std::atomic<std::uint64_t> operations_{0}, bytes_{0};
  std::atomic<bool> failed_{false};
  const std::shared_ptr<FlightRecorder> flights_ = std::make_shared<FlightRecorder>();

  std::mutex issue_;          // a communicator takes calls from one thread at a time
  bool has_come_in_ = false;  // and has not made its call of admit()
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable all_ended_;
  Line reducing_, spreading_;
  std::vector<std::uint32_t> members_;
};

}  // namespace netsum::torch_backend
