#include "control/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "netsum/error.h"
#include "transport/system/random.h"

namespace netsum::control {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Digest sha256(std::string_view text) {
  Digest digest{};
  if (EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::internal, "SHA-256 failed in OpenSSL");
  }
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view text) {
  Digest digest{};
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(text), text.size(), digest.data(), nullptr) ==
      nullptr) {
    throw Error(ErrorCode::internal, "HMAC-SHA256 failed in OpenSSL");
  }
  return digest;
}

std::string new_nonce() {
  std::string nonce(nonce_bytes, '\0');
  transport::random_bytes(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

std::string hexadecimal(std::span<const std::uint8_t> bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace netsum::control
