#include "result_hash.h"

#include <array>
#include <bit>
#include <cstring>

#include "sim/random.h"

namespace netsum::app {

std::uint64_t hash_of(std::uint64_t hash, std::uint64_t next) {
  return netsum::mix(hash ^ (next + 0x9e3779b97f4a7c15u));
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 4> lanes{1, 2, 3, 4};  // independent chains, for the multiplier's latency
  std::size_t at = 0;
  const auto step = [](std::uint64_t lane, std::uint64_t word) { return std::rotl(lane ^ word, 29) * 0x9fb21c651e98df25u; };
  for (; at + sizeof(lanes) <= bytes.size(); at += sizeof(lanes)) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = step(lanes[i], words[i]);
  }
  std::uint64_t hash = bytes.size();
  for (; at < bytes.size(); ++at) hash = step(hash, static_cast<std::uint64_t>(bytes[at]));
  for (const std::uint64_t lane : lanes) hash = hash_of(hash, lane);
  return hash;
}

}  // namespace netsum::app
