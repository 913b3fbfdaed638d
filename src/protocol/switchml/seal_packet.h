// A packet's last step before it leaves.
#pragma once

#include <cstddef>
#include <span>

#include "seal/sealer.h"
#include "wire/switchml.h"

namespace netsum::switchml {

// Completes a packet that is written but for its last bytes, which the seal takes.
inline void seal_packet(std::span<std::byte> packet, seal::Sealer* sealer) {
  if (sealer == nullptr) return wire::switchml::seal(packet);
  wire::switchml::reseal(packet, sealer->security());
  sealer->seal(packet, wire::switchml::common_bytes);
}

}  // namespace netsum::switchml
