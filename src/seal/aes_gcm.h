// AES-128-GCM (NIST SP 800-38D) of packets with one key. What it needs is allocated once, nothing per packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "seal/packet_key.h"

struct evp_cipher_ctx_st;  // OpenSSL's

namespace netsum::seal {

// The number of a packet under its key, never used again: two packets of one nonce would tell an observer their difference,
// and how to forge more.
struct Nonce {
  std::uint16_t sender = 0;
  std::uint64_t counter = 0;
};

class AesGcm {
 public:
  static constexpr std::size_t tag_bytes = 16;
  using Tag = std::array<std::byte, tag_bytes>;

  // The key's first 128 bits. Throws std::bad_alloc.
  explicit AesGcm(const PacketKey& key);

  // In place. `clear` is authenticated, and stays as it is.
  [[nodiscard]] Tag encrypt(Nonce nonce, std::span<const std::byte> clear, std::span<std::byte> text);
  // False: not authentic; what `out`, as long as `text`, then holds is worth nothing.
  [[nodiscard]] bool decrypt(Nonce nonce, std::span<const std::byte> clear, std::span<const std::byte> text, const Tag& tag,
                             std::span<std::byte> out);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  using Context = std::unique_ptr<evp_cipher_ctx_st, Free>;
  Context encrypts_, decrypts_;
};

}  // namespace netsum::seal
