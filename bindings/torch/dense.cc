#include "dense.h"

#include <ATen/ops/equal.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>

namespace netsum::torch_backend {

bool is_dense(const at::Tensor& tensor) {
  return tensor.layout() != at::kStrided || (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg());
}

at::Tensor dense(const at::Tensor& tensor) {
  return is_dense(tensor) ? tensor : tensor.detach().resolve_conj().resolve_neg().contiguous();
}

bool shares_memory(const at::Tensor& tensor) {
  for (std::int64_t dim = 0; tensor.layout() == at::kStrided && dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) return true;
  }
  return false;
}

void copy_into(const at::Tensor& to, const at::Tensor& values, bool non_blocking) {
  const c10::InferenceMode as_it_was_made(to.is_inference());  // another thread may have made it
  to.detach().copy_(values, non_blocking);
}

void write(const at::Tensor& to, const at::Tensor& values) {
  const c10::InferenceMode as_it_was_made(to.is_inference());
  at::Tensor once = to.detach(), value = values;
  for (std::int64_t dim = 0; dim < to.dim(); ++dim) {
    if (to.stride(dim) != 0 || to.size(dim) < 2) continue;
    once = once.narrow(dim, 0, 1);
    value = value.narrow(dim, 0, 1);
  }
  once.copy_(value);
  if (once.numel() == to.numel()) return;
  const auto bytes_of = [](const at::Tensor& tensor) { return dense(tensor).reshape(-1).view(at::kByte); };
  TORCH_CHECK(at::equal(bytes_of(to.detach()), bytes_of(values.to(to.device(), to.scalar_type()))), "netsum: the result, ",
              to.sizes(),
              ", has different values where elements of the expanded output share their memory: clone() the output first");
}

}  // namespace netsum::torch_backend
