// The caches of this host's processor. What is sent and received at a time follows from them, so that the kernel's copies
// are still there when our own kernels read them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace netsum::transport {

// Bytes of one core's second-level cache; 1 MiB where the system does not tell. Read once.
[[nodiscard]] std::size_t level_2_cache_bytes();

// Lengths for paths that stay on this host. Nothing is in flight there: a longer window only queues, and the second-level
// cache, which a core's ranks and aggregators share, loses what the kernel copied before our kernels read it.
struct NearPath {
  std::uint32_t window_bytes = 0;    // of a lane, at most: one datagram is summed while the next is on its way
  std::uint32_t datagram_bytes = 0;  // at most, headers included
};
[[nodiscard]] NearPath near_path(std::size_t level_2_bytes = level_2_cache_bytes());

}  // namespace netsum::transport
