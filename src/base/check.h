// Assertions on a protocol's state that must hold whatever packets arrive; enabled in the presets debug, asan, tsan and sim.
// A failed assertion throws, so that a simulation can name the seed. In release it costs nothing.
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
