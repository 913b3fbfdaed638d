// Assertions on a protocol's state that must hold whatever packets arrive. Every build has them; they are off until a
// program switches them on, before its threads start: `netsum simulate`, every test and every program with a sanitizer do.
// Off, one costs a load and a branch that is not taken. A failed assertion throws, so that a simulation can name the seed.
#pragma once

namespace netsum {

#ifdef NETSUM_CHECKED
inline bool checking = true;
#else
inline bool checking = false;
#endif

// Throws std::logic_error: "does not hold: CONDITION".
[[noreturn, gnu::cold]] void does_not_hold(const char* condition);

}  // namespace netsum

#define NETSUM_CHECK(condition)                          \
  do {                                                   \
    if (::netsum::checking && !(condition)) [[unlikely]] \
      ::netsum::does_not_hold(#condition);               \
  } while (false)
