#include "feedback.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "netsum/communicator.h"
#include "routes.h"

namespace netsum::torch_backend {

void round_as(WireFormat wire, const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.is_contiguous() && to.is_contiguous() && from.device().is_cpu() && to.device().is_cpu(),
              "netsum: both tensors must be contiguous, and on the CPU");
  const auto view = [](const at::Tensor& tensor) {
    return TensorView(tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()),
                      switch_dtype(tensor).value_or(DType::int8));
  };
  netsum::round_as(wire, view(from), view(to));
}

void Feedback::begin_step() {
  const std::lock_guard lock(mutex_);
  next_ = 0;
}

at::Tensor Feedback::give_back(at::Tensor values, const std::vector<std::size_t>& parts) {
  const std::lock_guard lock(mutex_);
  if (next_ == lost_.size()) lost_.emplace_back();
  at::Tensor& lost = lost_[next_++];
  // Another call than in the last step begins without.
  if (lost.defined() && lost.numel() == values.numel() && lost.dtype() == values.dtype()) values.add_(lost);
  at::Tensor sent = at::empty_like(values);
  std::int64_t begin = 0;
  for (const std::size_t part : parts) {
    const auto length = static_cast<std::int64_t>(part);
    round_as(wire_, values.narrow(0, begin, length), sent.narrow(0, begin, length));
    begin += length;
  }
  lost = std::move(values.sub_(sent).nan_to_num_(0.0, 0.0, 0.0));
  return sent;
}

}  // namespace netsum::torch_backend
