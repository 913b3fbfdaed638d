// A hash of 32-bit integers that is linear: the hashes of several contributions add up to that of their sum, as long as that
// is no wider. So whoever knows the key sees that a sum is that of the contributions, and nothing else.
//
//   hash of a block of 1024 words = sum of key[i] * word[i], modulo 2^64; words are signed, bit 31 of each key is 0
//   hash = sum of factor[b] * hash of block b; factor[0] is 1, the others are odd
//
// Whoever does not know the key, and changes words, has to guess how the hash changes: with a chance of 2^-32 for one block,
// and of 2^-28 for several, whose hashes may have low bits that are 0. One block's keys for all stay in the first-level
// cache.
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

  static constexpr std::size_t block_words = 1024;

  // Of words [first, first + count), little-endian, at any alignment; `first` begins a block. Parts' hashes add up too.
  [[nodiscard]] std::uint64_t operator()(const std::byte* words, std::size_t first, std::size_t count) const;

 private:
  std::vector<std::int32_t> low_, high_;  // of the keys
  std::vector<std::uint64_t> factors_;
};

// The hash in words that are added modulo 2^32: 22 bits in each, so that those of up to 1,024 ranks do not overflow.
inline constexpr std::size_t hash_words = 3, hash_bytes = hash_words * 4;
void write_hash(std::byte* words, std::uint64_t hash);
[[nodiscard]] std::uint64_t read_hash(const std::byte* words);  // a sum of some, as the sum of their hashes

}  // namespace netsum::seal
