// Loads and stores at any alignment. netsum's own formats are little-endian because all its hosts are; a big-endian port
// would swap here and in kernels/. The Internet's and InfiniBand's formats are big-endian.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

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

template <std::unsigned_integral T>
[[nodiscard]] inline T load_be(const std::byte* from) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value = static_cast<T>(std::uint64_t{value} << 8 | std::to_integer<std::uint64_t>(from[i]));
  }
  return value;
}

template <std::unsigned_integral T>
inline void store_be(std::byte* to, T value) {
  for (std::size_t i = sizeof value; i-- > 0; value = static_cast<T>(std::uint64_t{value} >> 8))
    to[i] = static_cast<std::byte>(value);
}

// Appends the values without padding.
template <class... T>
inline void append_bytes(std::vector<std::byte>& out, const T&... values) {
  static_assert((std::has_unique_object_representations_v<T> && ...));
  const auto append = [&](const auto& value) {
    const auto* const from = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), from, from + sizeof value);
  };
  (append(values), ...);
}

}  // namespace netsum
