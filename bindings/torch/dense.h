// Tensors as plain memory: what the switch and Gloo take.
#pragma once

#include <ATen/core/Tensor.h>

namespace netsum::torch_backend {

// Whether the tensor's values are what its memory holds, one behind the other: strides, and views that are conjugated or
// negated when they are read, say otherwise.
[[nodiscard]] bool is_dense(const at::Tensor& tensor);

// The tensor itself if it is dense (or has no strides: sparse), or a dense copy.
[[nodiscard]] at::Tensor dense(const at::Tensor& tensor);

// Whether elements share their memory: the tensor is expanded.
[[nodiscard]] bool shares_memory(const at::Tensor& tensor);

// On any thread, also to a tensor of inference mode.
void copy_into(const at::Tensor& to, const at::Tensor& values, bool non_blocking = false);

// The same, to a tensor of any strides. Throws if elements that share their memory (of an expanded tensor) were to have
// different values.
void write(const at::Tensor& to, const at::Tensor& values);

}  // namespace netsum::torch_backend
