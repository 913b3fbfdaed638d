// What few bits round of a group's reduce-scatters, given back to the call at the same place of the next step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <mutex>
#include <vector>

#include "netsum/types.h"

namespace netsum::torch_backend {

// As netsum::round_as; both on the CPU and contiguous.
void round_as(WireFormat wire, const at::Tensor& from, const at::Tensor& to);

// Any thread.
class Feedback {
 public:
  explicit Feedback(WireFormat wire) : wire_(wire) {}
  void begin_step();
  // What to send in place of `values`, which it keeps: rounded to nearest, each part by itself, as it then travels.
  [[nodiscard]] at::Tensor give_back(at::Tensor values, const std::vector<std::size_t>& parts);

 private:
  const WireFormat wire_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::vector<at::Tensor> lost_;  // by the calls of a step
};

}  // namespace netsum::torch_backend
