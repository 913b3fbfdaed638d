// SipHash-2-4 (Aumasson and Bernstein, 2012): a 64-bit hash that nobody can compute without the key.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace netsum {

using SipKey = std::array<std::uint64_t, 2>;

[[nodiscard]] inline std::uint64_t siphash(const SipKey& key, std::span<const std::byte> message) {
  std::uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d;
  std::uint64_t v2 = key[0] ^ 0x6c7967656e657261, v3 = key[1] ^ 0x7465646279746573;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  };
  const auto take = [&](std::uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  };
  std::size_t at = 0;
  for (; at + 8 <= message.size(); at += 8) take(load_le<std::uint64_t>(message.data() + at));
  std::uint64_t last = std::uint64_t{message.size()} << 56;
  for (std::size_t i = at; i < message.size(); ++i) {
    last |= std::to_integer<std::uint64_t>(message[i]) << (8 * (i - at));
  }
  take(last);
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace netsum
