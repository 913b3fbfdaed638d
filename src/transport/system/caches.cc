#include "transport/system/caches.h"

#include <unistd.h>

#include <algorithm>

namespace netsum::transport {

std::size_t level_2_cache_bytes() {
  static const std::size_t bytes = [] {
    const long told = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    return told > 0 ? static_cast<std::size_t>(told) : std::size_t{1} << 20;
  }();
  return bytes;
}

NearPath near_path(std::size_t level_2_bytes) {
  constexpr std::size_t longest_datagram = 64 << 10;  // what a segment train holds
  const auto datagram = static_cast<std::uint32_t>(std::min(longest_datagram, level_2_bytes / 8));
  return {2 * datagram, datagram};
}

}  // namespace netsum::transport
