// What two threads write, and what vector kernels read, begins a cache line.
#pragma once

#include <cstddef>

namespace netsum {

inline constexpr std::size_t cache_line = 64;

[[nodiscard]] constexpr std::size_t whole_lines(std::size_t bytes) {
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

}  // namespace netsum
