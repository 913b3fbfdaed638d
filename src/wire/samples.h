// One packet of each kind, with another value in each field: what two netsums have in common on the wire if they understand
// each other. Both ends of a control connection compare a digest of them (control/fingerprint.h), so that a layout which
// changes without its version's number is found before the first packet.
#pragma once

#include <cstddef>
#include <vector>

namespace netsum::wire {

[[nodiscard]] std::vector<std::byte> samples();  // all, one behind the other

}  // namespace netsum::wire
