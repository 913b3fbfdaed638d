// What two ends of a reliable connection tell each other of it, over TCP; and what they write to each other then.
#pragma once

#include <cstdint>

struct Peer {
  std::uint32_t qp = 0, psn = 0, key = 0, reserved = 0;
  std::uint64_t address = 0;
  std::uint8_t gid[16] = {};
};

constexpr std::uint32_t word(std::uint32_t message, std::uint32_t i) {
  return 0x01000193U * (7919 * message + i + 1);
}
