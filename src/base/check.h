// Assertions on a protocol's own state, in the presets debug, asan, tsan and sim: what must hold whatever arrives. One
// that fails throws, so that a simulation can name the seed; in release it costs nothing.
#pragma once

#include <stdexcept>

namespace netsum {

#ifdef NETSUM_CHECKED
inline constexpr bool checked_build = true;
#else
inline constexpr bool checked_build = false;
#endif

}  // namespace netsum

#define NETSUM_CHECK(condition)                                                                        \
  do {                                                                                                 \
    if (::netsum::checked_build && !(condition)) throw std::logic_error("does not hold: " #condition); \
  } while (false)
