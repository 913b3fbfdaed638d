// In place of src/seal/packet_key.cc: the page's job has no keys, but places for some. What else of keys is left out of the
// page is never called, and ends it if it is.
#include <algorithm>

#include "seal/packet_key.h"

namespace netsum::seal {

PacketKey::~PacketKey() {
  wipe(bytes_);
}

void wipe(std::span<std::byte> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::byte{});
}

}  // namespace netsum::seal
