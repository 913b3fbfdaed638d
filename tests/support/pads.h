// The pads of a job's ranks (private sums).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "seal/private_sums.h"
#include "support/virtual_network.h"

namespace netsum::testing {

// Of one life of a job: `life` seeds what the ranks draw.
inline std::vector<seal::PadKeys> pads_of(std::uint32_t ranks, std::uint64_t life = 1) {
  std::vector<seal::Agreement> agreements;
  std::vector<seal::PublicKey> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::array<std::byte, 32> drawn{};
    Random random(life << 32 | rank);
    for (std::byte& byte : drawn) byte = static_cast<std::byte>(random.next());
    agreements.emplace_back("a secret of the ranks", drawn);
    all.push_back(agreements.back().own());
  }
  std::vector<seal::PadKeys> keys;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) keys.push_back(agreements[rank].keys(all, rank).value());
  return keys;
}

}  // namespace netsum::testing
