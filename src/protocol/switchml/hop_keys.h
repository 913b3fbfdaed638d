// The keys between two neighbours on one lane.
#pragma once

#include "seal/packet_key.h"

namespace netsum::switchml {

struct HopKeys {
  seal::PacketKey up, down;  // towards the root, and away from it
  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(up); }
};

}  // namespace netsum::switchml
