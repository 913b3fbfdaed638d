// The tensors of one call in host memory: those that are in a device's memory have a twin there, the others are their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace netsum::torch_backend {

class HostTwins {
 public:
  using Tensors = std::vector<at::Tensor>;

  // What the call reads, and what it writes; in place: both.
  void reads(const Tensors& tensors);
  void reads(const std::vector<Tensors>& lists);
  void writes(const Tensors& tensors);
  void writes(const std::vector<Tensors>& lists);

  [[nodiscard]] at::Tensor of(const at::Tensor& tensor) const;
  [[nodiscard]] Tensors of(const Tensors& tensors) const;
  [[nodiscard]] std::vector<Tensors> of(const std::vector<Tensors>& lists) const;

  [[nodiscard]] std::vector<c10::Device> devices() const;
  [[nodiscard]] std::size_t bytes() const;  // of all twins
  // On the current stream, if the host's memory is pinned, and else at once.
  void copy_out(c10::Device device) const;
  void copy_in(c10::Device device) const;

 private:
  struct Twin {
    at::Tensor device, host;
    bool is_read = false, is_written = false;
  };
  Twin* twin_of(const at::Tensor& tensor);

  std::vector<Twin> twins_;
};

}  // namespace netsum::torch_backend
