// Memory of CUDA's devices, which no processor can read. Nothing here is linked against CUDA: a process that has such memory
// has loaded its driver.
#pragma once

#include <cstddef>

namespace netsum::mpi {

// Managed memory is not: processors read that. Any address.
[[nodiscard]] bool is_on_device(const void* address);

// Either may be on a device. Throws Error: internal.
void copy(void* to, const void* from, std::size_t bytes);

}  // namespace netsum::mpi
