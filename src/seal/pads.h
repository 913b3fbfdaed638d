// Pads: words that are added to a packet's, modulo 2^width, so that they tell nothing to whoever lacks the key. A pad is the
// key stream of AES-128 in counter mode (NIST SP 800-38A §6.5). A counter block is 16 bytes, little-endian: the number of a
// block of the tensor (8), and the operation's (8).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "seal/packet_key.h"

namespace netsum::seal {

// AES-128's round keys (FIPS 197 §5.2).
class PadKey {
 public:
  static constexpr std::size_t rounds = 10, block_bytes = 16;

  explicit PadKey(const PacketKey& key);  // of its first 128 bits
  PadKey(const PadKey&) = default;
  PadKey& operator=(const PadKey&) = default;
  ~PadKey();

  [[nodiscard]] const std::byte* round_keys() const { return round_keys_.data(); }

 private:
  alignas(block_bytes) std::array<std::byte, (rounds + 1) * block_bytes> round_keys_{};
};

// The place of a packet's values in its operation: no two packets with different values have one.
struct PadPlace {
  std::uint64_t operation = 0;
  std::uint64_t block = 0;  // of the first 16 bytes
};

// One pad of several.
struct PadTerm {
  const PadKey* key;
  bool added;  // else it is taken off
};

// to[i] = from[i] + the pads that are added - those that are taken off, in words of `width` bytes (1, 2, 4 or 8). `to` is
// `from`, or apart from it; any alignment.
void apply_pads(std::byte* to, std::span<const std::byte> from, std::size_t width, PadPlace place,
                std::span<const PadTerm> terms);

}  // namespace netsum::seal
