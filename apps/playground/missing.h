// What the standard library of Debian 12's emscripten (libc++ 13) lacks of C++20. In front of every file that is compiled
// for the page; of later libraries it adds nothing.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstddef>

#if _LIBCPP_VERSION < 14000
namespace std {

template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

template <class T, size_t n>
constexpr auto operator<=>(const array<T, n>& one, const array<T, n>& other) {
  for (size_t i = 0; i < n; ++i) {
    if (const auto order = one[i] <=> other[i]; order != 0) return order;
  }
  return T{} <=> T{};
}

namespace ranges {
template <class Range, class T>
constexpr void fill(Range&& range, const T& value) {
  std::fill(begin(range), end(range), value);
}
}  // namespace ranges

}  // namespace std
#endif
