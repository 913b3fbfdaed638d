// A packet's tag: NH of its content, and HighwayHash-64, a pseudorandom function, over that and the packet's counter. Of a
// packet of 60 KiB the one is fast and has a proof, and the other sees a sixtieth.
//
//   HighwayHash-64( NH of the content's whole units of 64 bytes | what is left of it | counter (8) | the content's length
//   (8) )
//
// No two packets of a key have one counter, so no tag tells whether two hashes are equal. A forger guesses a tag (2^-64), or
// keeps a packet's counter and tag and has to guess a content with the same hash (2^-64).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "seal/nh.h"
#include "seal/packet_key.h"

namespace netsum::seal {

// HighwayHash-64 (Alakuijala, Cox and Wassenberg, 2017) of the bytes.
[[nodiscard]] std::uint64_t keyed_hash(const PacketKey& key, std::span<const std::byte> bytes);

class Tagger {
 public:
  static constexpr std::size_t longest = 65535;  // of contents: none fits into a longer datagram

  explicit Tagger(const PacketKey& key);
  Tagger(const Tagger&) = delete;
  Tagger& operator=(const Tagger&) = delete;
  ~Tagger();

  [[nodiscard]] std::uint64_t tag(std::span<const std::byte> content, std::uint64_t counter) const;

 private:
  PacketKey key_;
  alignas(64) std::array<std::byte, nh_key_bytes> nh_key_{};
};

}  // namespace netsum::seal
