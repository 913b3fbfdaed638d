// A device of PyTorch's, such as a GPU, as staging needs it: through c10's interface for devices of every kind, so that
// nothing is built against CUDA.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>
#include <string>
#include <vector>

#include "bindings/staging/device.h"

namespace netsum::torch_backend {

// One thread at a time calls it.
class TorchDevice final : public staging::Device {
 public:
  explicit TorchDevice(c10::Device device) : device_(device), guard_(device.type()) {}

  // Takes over an event that somebody has recorded.
  [[nodiscard]] static Event adopt(c10::Event event);
  [[nodiscard]] c10::Stream stream_of(Stream stream) const { return streams_.at(stream); }

  [[nodiscard]] std::shared_ptr<std::byte> pinned(std::size_t bytes) override;
  [[nodiscard]] Stream begin_stream() override;
  void end_stream(Stream) noexcept override {}  // they are PyTorch's, and never end
  void copy_out(Stream stream, std::byte* host, const std::byte* device, std::size_t bytes) override;
  void copy_in(Stream stream, std::byte* device, const std::byte* host, std::size_t bytes) override;
  [[nodiscard]] Event record(Stream stream) override;
  [[nodiscard]] bool has_happened(Event event) override;
  void wait(Stream stream, Event event) override;
  void forget(Event event) noexcept override;

 private:
  void copy(Stream stream, const at::Tensor& to, const at::Tensor& from) const;
  [[nodiscard]] at::Tensor on_device(const std::byte* memory, std::size_t bytes) const;

  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  std::vector<c10::Stream> streams_;
};

// `probe` says whether the current stream of that kind of device is being captured into a graph: c10 has no call for it. Set
// once, before there are groups.
void set_capture_probe(std::function<bool(const std::string& device)> probe);
// Throws Error, bad_argument: a graph would repeat the copies that a call begins with, and not what the host does.
void refuse_capture(c10::Device device);

// Host memory that the device copies from and to by itself, where PyTorch has such memory for it; else any.
[[nodiscard]] at::Tensor pinned_tensor(at::IntArrayRef sizes, at::ScalarType type);

}  // namespace netsum::torch_backend
