// Runs taken apart, for who checks packets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "wire/switchml.h"

namespace netsum::wire::switchml {

// The members' packets, as they would have been sent alone; without seals.
[[nodiscard]] inline std::vector<std::vector<std::byte>> apart(const RunPacket& packet) {
  std::vector<std::vector<std::byte>> all;
  packet.for_each([&](const ChunkPacket& chunk) {
    std::vector<std::byte>& bytes = all.emplace_back(chunk_packet_bytes(chunk.header));
    std::copy(chunk.exponents.begin(), chunk.exponents.end(), bytes.begin() + chunk_header_bytes);
    write_chunk_header(bytes, chunk.common, chunk.header);
    seal(bytes);
  });
  return all;
}

}  // namespace netsum::wire::switchml
