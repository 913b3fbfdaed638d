// SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014): every bit of the input changes half of the output's.
#pragma once

#include <cstdint>

namespace netsum {

[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace netsum
