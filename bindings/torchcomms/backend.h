// torchcomms' backend "netsum": a communicator is a process group of netsum.torch, Gloo inside it included.
#pragma once

#include <comms/torchcomms/TorchCommBackend.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "work.h"

namespace netsum::torchcomms_backend {

namespace comms = torch::comms;

// One thread at a time calls it, but for abort(), which any thread calls until finalize().
class Backend final : public comms::TorchCommBackend {
 public:
  using WorkPtr = c10::intrusive_ptr<comms::TorchWork>;
  using Tensors = std::vector<at::Tensor>;

  // Imports netsum.torchcomms, and so needs a Python in the process.
  void init(at::Device device, const std::string& name, const comms::CommOptions& options) override;
  void finalize() override;
  [[nodiscard]] int getRank() const override { return rank_; }
  [[nodiscard]] int getSize() const override { return size_; }
  [[nodiscard]] std::string_view getBackendName() const override { return "netsum"; }
  [[nodiscard]] std::string_view getBackendVersion() const override;
  [[nodiscard]] std::string_view getCommName() const override { return name_; }
  [[nodiscard]] const comms::CommOptions& getOptions() const override { return options_; }
  [[nodiscard]] const at::Device& getDevice() const override { return device_; }
  [[nodiscard]] bool isInitialized() const override { return group_ != nullptr; }

  // The deadline of later operations that have none of their own; for tensors in a device's memory, the group's stays.
  void setTimeout(std::chrono::milliseconds timeout) override { options_.timeout = timeout; }
  [[nodiscard]] bool isAbortSupported() const override { return true; }
  [[nodiscard]] bool isAborted() const override { return aborted_; }
  // Operations at the switch fail, here at once and at the others as of a rank that left; Gloo's end by their deadline.
  void abort() override;

  std::shared_ptr<TorchCommBackend> split(const std::vector<int>& ranks, const std::string& name,
                                          const comms::CommOptions& options) override;

  WorkPtr send(const at::Tensor& tensor, int to, bool async, const comms::SendOptions& options) override;
  WorkPtr recv(at::Tensor& tensor, int from, bool async, const comms::RecvOptions& options) override;
  WorkPtr batch_op_issue(const std::vector<comms::BatchSendRecv::P2POp>& messages, bool async,
                         const comms::BatchP2POptions& options) override;
  WorkPtr broadcast(at::Tensor& tensor, int root, bool async, const comms::BroadcastOptions& options) override;
  WorkPtr all_reduce(at::Tensor& tensor, const comms::ReduceOp& op, bool async,
                     const comms::AllReduceOptions& options) override;
  WorkPtr reduce(const at::Tensor& tensor, int root, const comms::ReduceOp& op, bool async,
                 const comms::ReduceOptions& options) override;
  WorkPtr all_gather(const Tensors& outputs, const at::Tensor& input, bool async,
                     const comms::AllGatherOptions& options) override;
  WorkPtr all_gather_v(const Tensors& outputs, const at::Tensor& input, bool async,
                       const comms::AllGatherOptions& options) override {
    return all_gather(outputs, input, async, options);
  }
  WorkPtr all_gather_single(at::Tensor& output, const at::Tensor& input, bool async,
                            const comms::AllGatherSingleOptions& options) override;
  WorkPtr reduce_scatter(at::Tensor& output, const Tensors& inputs, const comms::ReduceOp& op, bool async,
                         const comms::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_v(at::Tensor& output, const Tensors& inputs, const comms::ReduceOp& op, bool async,
                           const comms::ReduceScatterOptions& options) override {
    return reduce_scatter(output, inputs, op, async, options);
  }
  WorkPtr reduce_scatter_single(at::Tensor& output, const at::Tensor& input, const comms::ReduceOp& op, bool async,
                                const comms::ReduceScatterSingleOptions& options) override;
  WorkPtr all_to_all_single(at::Tensor& output, const at::Tensor& input, bool async,
                            const comms::AllToAllSingleOptions& options) override;
  WorkPtr all_to_all_v_single(at::Tensor& output, const at::Tensor& input, const std::vector<uint64_t>& output_splits,
                              const std::vector<uint64_t>& input_splits, bool async,
                              const comms::AllToAllvSingleOptions& options) override;
  WorkPtr all_to_all(const Tensors& outputs, const Tensors& inputs, bool async,
                     const comms::AllToAllOptions& options) override;
  WorkPtr barrier(bool async, const comms::BarrierOptions& options) override;
  WorkPtr scatter(at::Tensor& output, const Tensors& inputs, int root, bool async,
                  const comms::ScatterOptions& options) override;
  WorkPtr gather(const Tensors& outputs, const at::Tensor& input, int root, bool async,
                 const comms::GatherOptions& options) override;

 private:
  using Milliseconds = std::chrono::milliseconds;

  c10d::Backend& group() const;
  template <class Options>
  [[nodiscard]] Milliseconds timeout_of(const Options& options) const {
    return options.timeout == comms::kNoTimeout ? options_.timeout : options.timeout;
  }
  WorkPtr collective(c10::intrusive_ptr<c10d::Work> work, bool async, Milliseconds timeout) const;
  WorkPtr messages(Work::Works works, bool async, Milliseconds timeout) const;
  WorkPtr exchange(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits, bool async, Milliseconds timeout) const;

  at::Device device_{at::kCPU};
  std::string name_;
  comms::CommOptions options_;
  int rank_ = -1, size_ = -1;  // -1: the environment says
  int world_rank_ = -1;        // in the communicator that is no other's part
  int splits_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> group_;
  std::atomic<bool> aborted_{false};
};

}  // namespace netsum::torchcomms_backend
