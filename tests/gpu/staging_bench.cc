// The extension module `staging_bench`: how fast tensors of a device's memory pass through host memory, where the network
// takes no time. It is what netsum's staging can reach at most; the stage `staging` compares it with copies of pinned memory
// by themselves.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <thread>

#include "bindings/staging/staged_reducer.h"
#include "bindings/torch/torch_device.h"

namespace netsum::torch_backend {
namespace {

class NoNetwork final : public staging::Network {
 public:
  class Done final : public Pending {
   public:
    [[nodiscard]] bool done() const override { return true; }
    void finish() override {}
  };
  [[nodiscard]] std::unique_ptr<Pending> all_reduce(TensorView, ReduceOp) override { return std::make_unique<Done>(); }
};

// Seconds of one pass, out and in again; the mean of `rounds` that are all under way at once.
double seconds_of_a_pass(const at::Tensor& tensor, std::size_t chunk_bytes, std::size_t buffers, std::uint32_t lanes,
                         int rounds) {
  const pybind11::gil_scoped_release release;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  TorchDevice device(tensor.device());
  NoNetwork network;
  staging::StagedReducer reducer(device, network, {chunk_bytes, buffers, lanes});
  c10::Event now(tensor.device().type());
  now.record(guard.getStream(tensor.device()));
  const auto ready = TorchDevice::adopt(std::move(now));
  const auto began = std::chrono::steady_clock::now();
  std::shared_ptr<staging::Staged> last;
  for (int i = 0; i < rounds; ++i) {
    last = reducer.all_reduce(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes() / 4, DType::float32, ReduceOp::sum,
                              ready);
  }
  while (!last->has_ended()) {
    if (!reducer.progress()) std::this_thread::yield();
  }
  while (!reducer.is_idle()) reducer.progress();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  device.forget(ready);
  if (last->error()) throw *last->error();
  return seconds.count() / rounds;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::module_::import("torch");
  module.def("seconds_of_a_pass", &seconds_of_a_pass);
}

}  // namespace netsum::torch_backend
