// The process group: what the switch does (routes.h) goes through it, everything else to a Gloo group of the same ranks.
//
// Written once for both of PyTorch's base classes for backends: ProcessGroup in 1.x, Backend in 2.x.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "call_counts.h"
#include "callback_threads.h"
#include "feedback.h"
#include "netsum/aggregator.h"
#include "stopwatch.h"
#include "switch_queue.h"

namespace netsum::torch_backend {

#if TORCH_VERSION_MAJOR >= 2
using GroupBase = c10d::Backend;
#else
using GroupBase = c10d::ProcessGroup;
#endif

// The path on which the ranks of a group decided to reduce, and why.
struct Decision {
  std::string path;  // "switch" or "gloo"
  std::string reason;
  std::string job;
  std::string mode;
  std::string switches;
  int shards = 0;                // how many ranks run a part of the switch
  std::vector<int> world_ranks;  // of the group's ranks
  bool survivors = false;        // the group goes on without ranks that died
};

// Of tensors in host memory; staged_group.h has the others.
template <class Base>
class Group : public Base {
 public:
  // `communicator` and `shard` are null if the decision is Gloo; `gloo` is null in a process that others let in. `shard` is
  // this rank's part of the switch, if it runs one; in `store` the ranks record that they have left, which a shard waits
  // for. `log`: takes a line; empty: silent.
  Group(c10::intrusive_ptr<Base> gloo, std::unique_ptr<Communicator> communicator, std::shared_ptr<Aggregator> shard,
        c10::intrusive_ptr<c10d::Store> store, Decision decision, std::function<void(const std::string&)> log);
  ~Group() override { end(); }

  // The last strong reference went, and weak ones are left: those to the groups that a process leaves at its end.
  void release_resources() override { end(); }

  // Fails pending operations and leaves the job; later operations are errors. Call without Python's interpreter lock.
  void shutdown();
  // Fails pending operations at the switch, here at once and at the other ranks as of a rank that left; Gloo's end by their
  // deadlines. Later operations are errors. Any thread calls it, and it does not wait. torch has it as a function of
  // GroupBase's in later versions, and shutdown() too.
  void abort();

  [[nodiscard]] const Decision& decision() const { return decision_; }
  [[nodiscard]] const SwitchQueue* queue() const { return queue_.get(); }
  // Behind all calls before it. Does nothing if Gloo would reduce the tensor.
  virtual void move_to_allocated(const at::Tensor& tensor);
  // From now on reduce-scatters get back what they lost at the same place of the last step, as `wire` rounds them.
  void give_back(WireFormat wire) { feedback_ = std::make_unique<Feedback>(wire); }
  // Behind all calls before it.
  virtual void begin_step();
  // A barrier that no rank's straggler deadline ends; it does not wait for calls before it.
  void wait_for_all();
  // SwitchQueue::admit().
  [[nodiscard]] std::vector<std::uint32_t> admit();
  // Runs a task on a thread of the group's, which outlives its communicator.
  void post(std::function<void()> task) { threads_->post(std::move(task)); }
  [[nodiscard]] CallCounts::Counts counts() const { return counts_.all(); }
  [[nodiscard]] double seconds_in_all_reduce() const { return stopwatch_.seconds(); }
  [[nodiscard]] virtual std::uint64_t staged_bytes() const { return 0; }  // of tensors in a device's memory
  [[nodiscard]] bool is_ours() const { return owner_ == getpid(); }

  const std::string getBackendName() const override { return "netsum"; }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
#if TORCH_VERSION_MAJOR >= 2
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return gloo(Call::all_reduce, tensors).allreduce_sparse(tensors, options);
  }
#endif
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
#if TORCH_VERSION_MAJOR >= 2
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
#endif
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override;
  uint64_t getSequenceNumberForGroup() override;

 protected:
  void end();  // what a destructor does
  // Before the queue and Gloo go; in a child of fork() only lets go.
  virtual void end_staging() {}
  void check_usable() const;
  // Whether the switch would take a call; by_switch() also counts it, and throws if the group cannot be used.
  bool would_take(Call call, const Tensors& tensors, const c10d::ReduceOp* op = nullptr) const {
    return queue_ && why_not(call, tensors, op).empty();
  }
  bool by_switch(Call call, const Tensors& tensors, const c10d::ReduceOp* op = nullptr);

 private:
  std::string why_not(Call call, const Tensors& tensors, const c10d::ReduceOp* op) const;  // there is a queue
  Base& gloo() const;                                                                      // throws if there is none
  Base& gloo(Call call, const Tensors& tensors);  // counts a call that the switch never takes
  void warn(bool last);
  WorkPtr reduce_all(Call call, Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout,
                     c10d::OpType type);
  WorkPtr gloo_reduce_all(Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout, c10d::OpType type);
  WorkPtr meet(Call call, c10d::OpType type, Tensors outputs, std::chrono::milliseconds timeout);
  WorkPtr scatter_reduced(Call call, at::Tensor flat, at::Tensor output, SwitchQueue::Counts counts,
                          const c10d::ReduceScatterOptions& options, c10d::OpType type);
  WorkPtr after_gloo(const WorkPtr& inner, Call call, c10d::OpType type, Tensors outputs, std::function<void()> then = {});

  const pid_t owner_ = getpid();
  const Decision decision_;
  c10::intrusive_ptr<Base> gloo_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Aggregator> shard_;  // outlives the queue, whose communicator is the shard's member

 protected:
  Stopwatch stopwatch_;
  std::unique_ptr<CallbackThreads> threads_ = std::make_unique<CallbackThreads>();  // outlive the queue, and Gloo's
  std::unique_ptr<SwitchQueue> queue_;

 private:
  std::unique_ptr<Feedback> feedback_;
  CallCounts counts_;
  const std::function<void(const std::string&)> log_;
  std::atomic<bool> closed_{false}, aborted_{false};
  std::mutex ending_;  // of the queue's end and abort()
};

extern template class Group<GroupBase>;

}  // namespace netsum::torch_backend
