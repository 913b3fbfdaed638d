#include "torch_device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>

#include <string>
#include <utility>

#include "netsum/error.h"

namespace netsum::torch_backend {
namespace {

c10::Event* pointer_of(staging::Device::Event event) {
  return reinterpret_cast<c10::Event*>(event);
}

// What a device throws, as an Error.
template <class Function>
auto checked(Function function) {
  try {
    return function();
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::internal, std::string("the device of the tensors has failed: ") + error.what_without_backtrace());
  }
}

std::function<bool(const std::string& device)>& capture_probe() {
  static auto& probe = *new std::function<bool(const std::string& device)>;
  return probe;
}

at::Tensor on_host(const std::byte* memory, std::size_t bytes) {
  return at::from_blob(const_cast<std::byte*>(memory), {static_cast<std::int64_t>(bytes)}, at::kByte);
}

}  // namespace

void set_capture_probe(std::function<bool(const std::string& device)> probe) {
  capture_probe() = std::move(probe);
}

void refuse_capture(c10::Device device) {
  const std::string kind = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  if (!capture_probe() || !capture_probe()(kind)) return;
  throw Error(ErrorCode::bad_argument, "a graph is being captured on the current stream of " + kind +
                                           ", and netsum's collectives cannot be part of a graph, because the host sends "
                                           "their packets: call them outside of the capture");
}

at::Tensor pinned_tensor(at::IntArrayRef sizes, at::ScalarType type) {
  const auto options = at::TensorOptions().dtype(type);
  try {
    return at::empty(sizes, options.pinned_memory(true));
  } catch (const c10::Error&) {
    return at::empty(sizes, options);
  }
}

staging::Device::Event TorchDevice::adopt(c10::Event event) {
  return reinterpret_cast<Event>(new c10::Event(std::move(event)));
}

std::shared_ptr<std::byte> TorchDevice::pinned(std::size_t bytes) {
  const at::Tensor memory = pinned_tensor({static_cast<std::int64_t>(bytes)}, at::kByte);
  return {static_cast<std::byte*>(memory.data_ptr()), [memory](std::byte*) {}};
}

staging::Device::Stream TorchDevice::begin_stream() {
  checked([&] { streams_.push_back(guard_.getStreamFromGlobalPool(device_)); });
  return streams_.size() - 1;
}

at::Tensor TorchDevice::on_device(const std::byte* memory, std::size_t bytes) const {
  return at::from_blob(
      const_cast<std::byte*>(memory), {static_cast<std::int64_t>(bytes)}, {1}, [](void*) {},
      at::TensorOptions().dtype(at::kByte).device(device_), device_);
}

void TorchDevice::copy(Stream stream, const at::Tensor& to, const at::Tensor& from) const {
  checked([&] {
    const c10::StreamGuard current(stream_of(stream));
    to.copy_(from, /*non_blocking=*/true);
  });
}

void TorchDevice::copy_out(Stream stream, std::byte* host, const std::byte* device, std::size_t bytes) {
  copy(stream, on_host(host, bytes), on_device(device, bytes));
}

void TorchDevice::copy_in(Stream stream, std::byte* device, const std::byte* host, std::size_t bytes) {
  copy(stream, on_device(device, bytes), on_host(host, bytes));
}

staging::Device::Event TorchDevice::record(Stream stream) {
  return checked([&] {
    c10::Event event(device_.type());
    event.record(stream_of(stream));
    return adopt(std::move(event));
  });
}

bool TorchDevice::has_happened(Event event) {
  return checked([&] { return pointer_of(event)->query(); });
}

void TorchDevice::wait(Stream stream, Event event) {
  checked([&] { pointer_of(event)->block(stream_of(stream)); });
}

void TorchDevice::forget(Event event) noexcept {
  delete pointer_of(event);
}

}  // namespace netsum::torch_backend
