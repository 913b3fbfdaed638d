// What two threads write, what vector kernels read, and what the kernel copies into begins a cache line.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace netsum {

inline constexpr std::size_t cache_line = 64;

[[nodiscard]] constexpr std::size_t whole_lines(std::size_t bytes) {
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

struct DeleteLines {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{cache_line}); }
};
using Lines = std::unique_ptr<std::byte[], DeleteLines>;

// Not initialized.
[[nodiscard]] inline Lines new_lines(std::size_t bytes) {
  return Lines(new (std::align_val_t{cache_line}) std::byte[bytes]);
}

}  // namespace netsum
