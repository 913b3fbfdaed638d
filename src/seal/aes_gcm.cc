#include "seal/aes_gcm.h"

#include <openssl/evp.h>

#include <new>

#include "base/bytes.h"
#include "base/check.h"
#include "seal/openssl_bytes.h"

namespace netsum::seal {
namespace {

using Iv = std::array<std::byte, 12>;

// SP 800-38D §8.2.1: a fixed field, which no other sender under this key has, and a counter.
[[nodiscard]] Iv iv_of(Nonce nonce) {
  Iv iv{};
  store_le(iv.data(), nonce.counter);
  store_le(iv.data() + sizeof nonce.counter, nonce.sender);
  return iv;
}

}  // namespace

void AesGcm::Free::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);  // wipes the key
}

AesGcm::AesGcm(const PacketKey& key) : encrypts_(EVP_CIPHER_CTX_new()), decrypts_(EVP_CIPHER_CTX_new()) {
  const unsigned char* const bytes = as_unsigned(key.bytes().data());
  if (!encrypts_ || !decrypts_ || EVP_EncryptInit_ex(encrypts_.get(), EVP_aes_128_gcm(), nullptr, bytes, nullptr) != 1 ||
      EVP_DecryptInit_ex(decrypts_.get(), EVP_aes_128_gcm(), nullptr, bytes, nullptr) != 1) {
    throw std::bad_alloc();
  }
}

AesGcm::Tag AesGcm::encrypt(Nonce nonce, std::span<const std::byte> clear, std::span<std::byte> text) {
  evp_cipher_ctx_st* const context = encrypts_.get();
  const Iv iv = iv_of(nonce);
  Tag tag{};
  int written = 0;
  bool good = EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, as_unsigned(iv.data())) == 1;
  good =
      good && EVP_EncryptUpdate(context, nullptr, &written, as_unsigned(clear.data()), static_cast<int>(clear.size())) == 1;
  good = good && EVP_EncryptUpdate(context, as_unsigned(text.data()), &written, as_unsigned(text.data()),
                                   static_cast<int>(text.size())) == 1;
  good = good && EVP_EncryptFinal_ex(context, nullptr, &written) == 1;
  good = good && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, tag_bytes, tag.data()) == 1;
  NETSUM_CHECK(good);
  // Values that nobody encrypted must not leave. A tag of zeros with nothing behind it is believed by nobody.
  if (!good) wipe(text);
  return tag;
}

bool AesGcm::decrypt(Nonce nonce, std::span<const std::byte> clear, std::span<const std::byte> text, const Tag& tag,
                     std::span<std::byte> out) {
  NETSUM_CHECK(out.size() >= text.size());
  evp_cipher_ctx_st* const context = decrypts_.get();
  const Iv iv = iv_of(nonce);
  Tag expected = tag;  // OpenSSL takes it as writable
  int written = 0;
  return EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, as_unsigned(iv.data())) == 1 &&
         EVP_DecryptUpdate(context, nullptr, &written, as_unsigned(clear.data()), static_cast<int>(clear.size())) == 1 &&
         EVP_DecryptUpdate(context, as_unsigned(out.data()), &written, as_unsigned(text.data()),
                           static_cast<int>(text.size())) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, tag_bytes, expected.data()) == 1 &&
         EVP_DecryptFinal_ex(context, nullptr, &written) == 1;
}

}  // namespace netsum::seal
