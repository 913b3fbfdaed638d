#include "sim/forgeries.h"

#include "seal/packet_key.h"
#include "seal/sealer.h"

namespace netsum::sim {

void forge_sealed(std::vector<std::byte>& bytes, PacketSecurity security, std::size_t clear, std::size_t first,
                  Random& random) {
  switch (random.below(4)) {
    case 0:
      if (bytes.size() <= first) break;
      bytes[random.between(first, bytes.size() - 1)] ^= static_cast<std::byte>(1U << random.below(8));
      break;
    case 1:
      bytes.resize(random.below(bytes.size()));
      break;
    case 2: {
      seal::PacketKey::Bytes key;
      for (std::byte& byte : key) byte = static_cast<std::byte>(random.next());
      if (bytes.size() < clear + seal::trailer_bytes(security)) break;
      seal::Sealer(security, seal::PacketKey(key), 0).seal(bytes, clear);
      break;
    }
    default:
      break;
  }
}

}  // namespace netsum::sim
