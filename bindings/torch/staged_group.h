// The process group for tensors in a device's memory too: they go through host memory (sequencer.h). A group that has seen
// none is a Group.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "process_group.h"
#include "sequencer.h"

namespace netsum::torch_backend {

template <class Base>
class StagedGroup final : public Group<Base> {
 public:
  using typename Group<Base>::Tensors;
  using typename Group<Base>::WorkPtr;

  // `patience`: with a device that does not come to what it has to do. The rest as for Group.
  template <class... Arguments>
  explicit StagedGroup(std::chrono::milliseconds patience, Arguments&&... arguments)
      : Group<Base>(std::forward<Arguments>(arguments)...), patience_(patience) {}
  ~StagedGroup() override { this->end(); }

  [[nodiscard]] std::uint64_t staged_bytes() const override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
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
#if TORCH_VERSION_MAJOR >= 2
  // Calls between these are issued one by one, as all others; one work ends when all of them have. PyTorch asks for it in
  // batch_isend_irecv() of a GPU's tensors.
  void startCoalescing() override {
    coalesced_.emplace();
  }
  WorkPtr endCoalescing() override;
#endif
  void move_to_allocated(const at::Tensor& tensor) override;
  void begin_step() override;

 private:
  void end_staging() override;
  Sequencer& sequencer();
  // Whether a call cannot go on at once: tensors are in a device's memory, a call before it has yet to be issued, or its
  // work shall be one of those that endCoalescing() gives.
  bool must_line_up(const Tensors& tensors) const;
  bool has_unissued() const;
  bool is_staged_in_chunks(const Tensors& tensors, const c10d::ReduceOp& op) const;
  // `call` gets the twins. `result`: the work's.
  WorkPtr line_up(c10d::OpType type, std::string what, HostTwins twins, Tensors result, Sequencer::Issue call,
                  bool behind_all = false);
  WorkPtr behind_all(const char* what, std::function<void()> action);
  WorkPtr noted(WorkPtr work);
  WorkPtr with_future(WorkPtr message, c10d::OpType type);
  WorkPtr reduce_in_chunks(Call call, const Tensors& tensors, const c10d::ReduceOp& op, c10d::OpType type);

  const std::chrono::milliseconds patience_;
  std::once_flag made_;
  std::unique_ptr<Sequencer> sequencer_;
  std::optional<std::vector<WorkPtr>> coalesced_;  // since startCoalescing()
  std::atomic<Sequencer*> line_{nullptr};          // the same: calls may be made from several threads
};

extern template class StagedGroup<GroupBase>;

}  // namespace netsum::torch_backend
