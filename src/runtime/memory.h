// Packet memory for protocols: zeroed, and aligned to cache lines.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace netsum::runtime {

class PacketMemory {
 public:
  PacketMemory() = default;
  explicit PacketMemory(std::size_t bytes) : lines_((bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine)) {}

  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)); }

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  std::vector<CacheLine> lines_;
};

}  // namespace netsum::runtime
