// The fields of what is part of several messages (encoding/codec.h).
#pragma once

#include "netsum/types.h"
#include "session/check.h"
#include "session/membership.h"

namespace netsum::session {

inline constexpr std::size_t longest_own_ask = 16 << 10;   // of a request, and of a profile
inline constexpr std::size_t longest_own_grant = 5 << 20;  // of an admission, with a share for each rank and lane

template <class Archive>
void fields(Archive& a, HopKeys& m) {
  a.key(1, "up", m.up);
  a.key(2, "down", m.down);
}
template <class Archive>
void fields(Archive& a, Placement& m) {
  a.list(1, "switches", m.switches, most_switches);
  a.list(2, "parent_of_switch", m.parent_of_switch, most_switches);
  a.list(3, "switch_of_rank", m.switch_of_rank, max_world_size);
}
template <class Archive>
void fields(Archive& a, Profile& m) {
  a.text(1, "protocol", m.protocol, longest_name);
  a.text(2, "own", m.own, longest_own_ask);
}

}  // namespace netsum::session
