// A ring of foreign hosts as an operator writes it.
#pragma once

#include <string>

#include "protocol/netreduce/accelerator.h"

namespace netsum::netreduce {

// "id=0,ranks=3,packets=8,window=4,mtu=1024,dtype=int32,layout=nrtv,order=ring": any of those but ranks may be left out, and
// is as RingConfig has it then. A layout of one's own (wire::netreduce::parse_layout) has ';' in the place of its commas:
// "ranks=2,layout=magic=4e527476@0;ring=4:2;rank=6:2;message=8:4;header=16". Its connections are learned; its incarnation is
// the caller's to give. Throws Error: bad_argument.
[[nodiscard]] RingConfig parse_ring(const std::string& text);

}  // namespace netsum::netreduce
