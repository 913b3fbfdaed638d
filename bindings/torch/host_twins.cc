#include "host_twins.h"

#include <algorithm>

#include "dense.h"
#include "torch_device.h"

namespace netsum::torch_backend {

HostTwins::Twin* HostTwins::twin_of(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return nullptr;
  for (Twin& twin : twins_) {
    if (twin.device.is_same(tensor)) return &twin;
  }
  twins_.push_back({tensor, pinned_tensor(tensor.sizes(), tensor.scalar_type())});
  return &twins_.back();
}

void HostTwins::reads(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (Twin* const twin = twin_of(tensor)) twin->is_read = true;
  }
}

void HostTwins::writes(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (Twin* const twin = twin_of(tensor)) twin->is_written = true;
  }
}

void HostTwins::reads(const std::vector<Tensors>& lists) {
  for (const Tensors& list : lists) reads(list);
}

void HostTwins::writes(const std::vector<Tensors>& lists) {
  for (const Tensors& list : lists) writes(list);
}

at::Tensor HostTwins::of(const at::Tensor& tensor) const {
  for (const Twin& twin : twins_) {
    if (twin.device.is_same(tensor)) return twin.host;
  }
  return tensor;
}

auto HostTwins::of(const Tensors& tensors) const -> Tensors {
  Tensors hosts;
  for (const at::Tensor& tensor : tensors) hosts.push_back(of(tensor));
  return hosts;
}

auto HostTwins::of(const std::vector<Tensors>& lists) const -> std::vector<Tensors> {
  std::vector<Tensors> hosts;
  for (const Tensors& list : lists) hosts.push_back(of(list));
  return hosts;
}

std::vector<c10::Device> HostTwins::devices() const {
  std::vector<c10::Device> devices;
  for (const Twin& twin : twins_) {
    if (std::find(devices.begin(), devices.end(), twin.device.device()) == devices.end()) {
      devices.push_back(twin.device.device());
    }
  }
  return devices;
}

std::size_t HostTwins::bytes() const {
  std::size_t bytes = 0;
  for (const Twin& twin : twins_) bytes += twin.host.nbytes();
  return bytes;
}

void HostTwins::copy_out(c10::Device device) const {
  for (const Twin& twin : twins_) {
    if (!twin.is_read || twin.device.device() != device) continue;
    // As they are read: a copy that does not wait would conjugate and negate at the host before the values are there.
    copy_into(twin.host, twin.device.detach().resolve_conj().resolve_neg(), /*non_blocking=*/true);
  }
}

void HostTwins::copy_in(c10::Device device) const {
  for (const Twin& twin : twins_) {
    if (!twin.is_written || twin.device.device() != device) continue;
    if (shares_memory(twin.device)) {
      write(twin.device, twin.host);  // compares, and so waits for the device
    } else {
      copy_into(twin.device, twin.host, /*non_blocking=*/true);
    }
  }
}

}  // namespace netsum::torch_backend
