// NH, the hash of UMAC (Black, Halevi, Krawczyk, Krovetz and Rogaway, CRYPTO '99; RFC 4418 §5.2): whoever does not know the
// key cannot name two contents of one length whose hashes are equal but with a chance of 2^-64. It says nothing by itself:
// who sees hashes learns the key.
//
// Words are of 32 bits, little-endian. A block's hash is the sum over its pairs of words, modulo 2^64,
//   (content[2i] + key[2i]) * (content[2i + 1] + key[2i + 1]),   words modulo 2^32, products of 64 bits,
// twice: with the key from its begin (2^-32), and from nh_shift bytes on (the same again, by Toeplitz' construction).
#pragma once

#include <cstddef>
#include <span>

namespace netsum::seal {

inline constexpr std::size_t nh_unit = 64, nh_block = 1024, nh_shift = nh_unit;
inline constexpr std::size_t nh_key_bytes = nh_block + nh_shift, nh_hash_bytes = 16;

// Of each block, the last of which may be shorter, behind one another. The content's length is a multiple of nh_unit.
// Returns the hashes' end.
std::byte* nh(std::byte* hashes, std::span<const std::byte, nh_key_bytes> key, std::span<const std::byte> content);

}  // namespace netsum::seal
