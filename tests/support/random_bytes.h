// Bytes of one seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/virtual_network.h"

namespace netsum::testing {

[[nodiscard]] inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

}  // namespace netsum::testing
