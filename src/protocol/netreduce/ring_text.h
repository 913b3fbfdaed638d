// An operator's text description of a ring of foreign hosts.
#pragma once

#include <string>

#include "protocol/netreduce/accelerator.h"

namespace netsum::netreduce {

// "id=0,ranks=3,packets=8,window=4,mtu=1024,dtype=int32,layout=nrtv,order=ring": all but ranks are optional and default to
// RingConfig's values. A custom layout (wire::netreduce::parse_layout) has ';' instead of ',':
// "ranks=2,layout=magic=4e527476@0;ring=4:2;rank=6:2;message=8:4;header=16". The ring's connections are learned; the caller
// sets its incarnation. Throws Error: bad_argument.
[[nodiscard]] RingConfig parse_ring(const std::string& text);

}  // namespace netsum::netreduce
