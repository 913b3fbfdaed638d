// The handle that an operation returns to torchcomms: works of the process group, seen as one.
#pragma once

#include <c10/core/Device.h>
#include <torch/version.h>
#include <comms/torchcomms/TorchWork.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <mutex>
#include <vector>

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 6)
#error "netsum's backend for torchcomms needs torch 2.6 or later: build without NETSUM_TORCHCOMMS"
#endif

namespace netsum::torchcomms_backend {

class Work final : public torch::comms::TorchWork {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  using Milliseconds = std::chrono::milliseconds;

  // A collective; its status tells how it ended, also without wait(). `timeout`: its deadline, which it has already.
  [[nodiscard]] static c10::intrusive_ptr<Work> of_collective(c10::intrusive_ptr<c10d::Work> work, c10::Device device,
                                                              Milliseconds timeout);
  // Messages, whose status is told by wait(), as that of Gloo's own is. `timeout`: wait() waits so long for each.
  [[nodiscard]] static c10::intrusive_ptr<Work> of_messages(Works works, c10::Device device, Milliseconds timeout);

  // Of tensors in a device's memory the current stream waits, and in waitBlocking() the caller too.
  void wait() override;
  void waitBlocking() override;
  [[nodiscard]] Milliseconds getTimeout() const override { return timeout_; }

  Work(Works works, c10::Device device, Milliseconds timeout, Milliseconds patience);

 private:
  void end(WorkStatus status);

  const Works works_;
  const c10::Device device_;
  const Milliseconds timeout_, patience_;
  c10::intrusive_ptr<c10::ivalue::Future> how_;  // a collective's c10d::WorkResult
  std::recursive_mutex ending_;                  // hooks run under it, and may ask the work
  bool ended_ = false;
};

}  // namespace netsum::torchcomms_backend
