// The trailer that makes a packet believable: a counter, and a tag over everything before the tag. One Sealer counts a key's
// packets in one direction of one lane; an Opener is at the other end.
//
//   tag      ... | counter (8, little-endian) | tag (8, seal/tagger.h)
//   encrypt  ... | counter (8, little-endian) | AES-128-GCM's tag (16)   all but the packet's first `clear` bytes encrypted
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "netsum/types.h"
#include "seal/aes_gcm.h"
#include "seal/packet_key.h"
#include "seal/tagger.h"

namespace netsum::seal {

inline constexpr std::size_t counter_bytes = 8, tag_bytes = 8;
[[nodiscard]] constexpr std::size_t trailer_bytes(PacketSecurity security) {
  switch (security) {
    case PacketSecurity::none:
      return 0;
    case PacketSecurity::tag:
      return counter_bytes + tag_bytes;
    case PacketSecurity::encrypt:
      return counter_bytes + AesGcm::tag_bytes;
  }
  return 0;
}
inline constexpr std::size_t longest_trailer = trailer_bytes(PacketSecurity::encrypt);

// Memory of a neighbour's keys, both ways, for the account: most of it is NH's keys, or OpenSSL's contexts.
[[nodiscard]] constexpr std::size_t link_bytes(PacketSecurity security) {
  switch (security) {
    case PacketSecurity::none:
      return 0;
    case PacketSecurity::tag:
      return 3072;
    case PacketSecurity::encrypt:
      return 6144;
  }
  return 0;
}

// Both ends of one kind of protection. One key serves one of them: each has its own, derived.
class Protection {
 public:
  Protection(PacketSecurity security, const PacketKey& key, std::uint16_t sender);

  [[nodiscard]] PacketSecurity security() const { return security_; }
  [[nodiscard]] std::size_t trailer() const { return trailer_bytes(security_); }

 protected:
  PacketSecurity security_;
  std::uint16_t sender_;
  std::unique_ptr<const Tagger> tagger_;  // tag
  std::optional<AesGcm> cipher_;          // encrypt
};

// It cannot be copied: a copy would use counters again.
class Sealer : private Protection {
 public:
  // `issued`: the greatest counter that this key may have been used with.
  Sealer(PacketSecurity security, const PacketKey& key, std::uint16_t sender, std::uint64_t issued = 0)
      : Protection(security, key, sender), issued_(issued) {}
  Sealer(Sealer&&) = default;
  Sealer& operator=(Sealer&&) = default;

  using Protection::security;
  using Protection::trailer;
  // Fills in the packet's last trailer() bytes, and encrypts those before if that is wanted.
  void seal(std::span<std::byte> packet, std::size_t clear);
  [[nodiscard]] std::uint64_t issued() const { return issued_; }

 private:
  std::uint64_t issued_;
};

class Opener : private Protection {
 public:
  using Protection::Protection;
  Opener(Opener&&) = default;
  Opener& operator=(Opener&&) = default;

  using Protection::security;
  using Protection::trailer;

  struct Opened {
    std::span<const std::byte> bytes;  // the packet without its trailer
    std::uint64_t counter = 0;
  };
  // None: not authentic. What is encrypted is decrypted in `room`, which has place for the packet; else the bytes stay where
  // they are.
  [[nodiscard]] std::optional<Opened> open(std::span<const std::byte> packet, std::size_t clear, std::span<std::byte> room);
};

}  // namespace netsum::seal
