// What a stranger makes of sealed packets, whatever their protocol.
#pragma once

#include <cstddef>
#include <vector>

#include "netsum/types.h"
#include "sim/random.h"

namespace netsum::sim {

// Another bit from byte `first` on, a shorter packet, another tenant's seal, or the same once more. `clear`: as
// Sealer::seal().
void forge_sealed(std::vector<std::byte>& bytes, PacketSecurity security, std::size_t clear, std::size_t first,
                  Random& random);

}  // namespace netsum::sim
