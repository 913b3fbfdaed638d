// Little-endian loads and stores at any alignment. netsum's own formats are little-endian because every host that runs it
// is; a big-endian port would swap here and in kernels/.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>

namespace netsum {

static_assert(std::endian::native == std::endian::little, "wire formats and kernels assume a little-endian host");

template <std::unsigned_integral T>
[[nodiscard]] inline T load_le(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <std::unsigned_integral T>
inline void store_le(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace netsum
