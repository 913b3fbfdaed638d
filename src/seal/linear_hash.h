// A hash of 32-bit integers that is linear: the hashes of several contributions add up to that of their sum, as long as that
// is no wider. So whoever knows the key sees that a sum is that of the contributions, and nothing else.
//
//   hash = sum of key[i] * word[i], modulo 2^64; words are signed, keys have 63 bits: bit 31 is 0
//
// Whoever does not know the key, and changes words, has to guess how the hash changes: with a chance of 2^-32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "seal/packet_key.h"

namespace netsum::seal {

class LinearHash {
 public:
  LinearHash(const PacketKey& key, std::size_t most_words);
  LinearHash(const LinearHash&) = default;
  LinearHash& operator=(const LinearHash&) = default;
  ~LinearHash();

  // Of words [first, first + count), little-endian, at any alignment: parts' hashes add up too.
  [[nodiscard]] std::uint64_t operator()(const std::byte* words, std::size_t first, std::size_t count) const;

 private:
  std::vector<std::int32_t> low_, high_;  // of the keys
};

// The hash in words that are added modulo 2^32: 22 bits in each, so that those of up to 1,024 ranks do not overflow.
inline constexpr std::size_t hash_words = 3, hash_bytes = hash_words * 4;
void write_hash(std::byte* words, std::uint64_t hash);
[[nodiscard]] std::uint64_t read_hash(const std::byte* words);  // a sum of some, as the sum of their hashes

}  // namespace netsum::seal
