#include "seal/packet_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "seal/openssl_bytes.h"

namespace netsum::seal {
namespace {

// OpenSSL would take itself down at exit, before objects with static storage that seal their last packets and messages then.
// Whoever uses it first decides, so this runs as the library is loaded.
[[maybe_unused]] const int stays_until_the_end = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

}  // namespace

PacketKey::~PacketKey() {
  wipe(bytes_);
}

PacketKey PacketKey::derived(std::string_view purpose, std::uint64_t number) const {
  constexpr std::size_t longest_purpose = 32;
  NETSUM_CHECK(purpose.size() <= longest_purpose);
  // HKDF's T(1) = HMAC(key, info || 1); info is the purpose and its number.
  std::array<std::byte, longest_purpose + sizeof number + 1> message{};
  std::memcpy(message.data(), purpose.data(), purpose.size());
  std::size_t length = purpose.size();
  store_le(message.data() + length, number);
  length += sizeof number;
  message[length++] = std::byte{1};
  return keyed(std::span(message).first(length));
}

PacketKey PacketKey::keyed(std::span<const std::byte> bytes) const {
  return authenticated(bytes_, bytes);
}

PacketKey PacketKey::extracted(std::string_view salt, std::span<const std::byte> secret) {
  return authenticated(std::as_bytes(std::span(salt)), secret);
}

// HMAC-SHA256 (RFC 2104).
PacketKey PacketKey::authenticated(std::span<const std::byte> key, std::span<const std::byte> message) {
  PacketKey made;
  unsigned int bytes = 0;
  made.some_ = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), as_unsigned(message.data()), message.size(),
                    reinterpret_cast<unsigned char*>(made.bytes_.data()), &bytes) != nullptr &&
               bytes == size;
  return made;
}

bool operator==(const PacketKey& a, const PacketKey& b) {
  return static_cast<bool>(a) == static_cast<bool>(b) &&
         CRYPTO_memcmp(a.bytes().data(), b.bytes().data(), PacketKey::size) == 0;
}

void wipe(std::span<std::byte> bytes) {
  OPENSSL_cleanse(bytes.data(), bytes.size());
}

}  // namespace netsum::seal
