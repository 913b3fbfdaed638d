#include "seal/private_sums.h"

#include <openssl/evp.h>

#include <algorithm>
#include <new>

#include "base/bytes.h"
#include "seal/openssl_bytes.h"

namespace netsum::seal {
void Agreement::Free::operator()(evp_pkey_st* key) const {
  EVP_PKEY_free(key);
}

Agreement::Agreement(std::string_view secret, std::span<const std::byte, 32> drawn)
    : secret_(PacketKey::extracted("netsum private sums", std::as_bytes(std::span(secret)))),
      pair_(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, as_unsigned(drawn.data()), drawn.size())) {
  std::size_t bytes = own_.size();
  if (!pair_ || EVP_PKEY_get_raw_public_key(pair_.get(), as_unsigned(own_.data()), &bytes) != 1) throw std::bad_alloc();
}

std::optional<PacketKey> Agreement::shared_with(const PublicKey& peer) const {
  const std::unique_ptr<evp_pkey_st, Free> other(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, as_unsigned(peer.data()), peer.size()));
  struct FreeContext {
    void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  };
  const std::unique_ptr<EVP_PKEY_CTX, FreeContext> context(EVP_PKEY_CTX_new(pair_.get(), nullptr));
  PacketKey::Bytes shared{};
  std::size_t bytes = shared.size();
  // It refuses the points that give all zeros to everybody (RFC 7748 §6.1).
  const bool good = other && context && EVP_PKEY_derive_init(context.get()) == 1 &&
                    EVP_PKEY_derive_set_peer(context.get(), other.get()) == 1 &&
                    EVP_PKEY_derive(context.get(), as_unsigned(shared.data()), &bytes) == 1;
  const PacketKey key{shared};
  wipe(shared);
  return good ? std::optional(key) : std::nullopt;
}

std::uint32_t Agreement::fingerprint() const {
  return load_le<std::uint32_t>(secret_.derived("netsum secret fingerprint", 0).bytes().data());
}

std::optional<PadKeys> Agreement::keys(std::span<const PublicKey> all, std::uint32_t rank) const {
  if (rank >= all.size() || all[rank] != own_) return std::nullopt;
  const PacketKey life = secret_.keyed(std::as_bytes(all));
  PadKeys keys{life.derived("netsum pads out", 0), life.derived("netsum sum check", 0), {}, {}};
  const auto ranks = static_cast<std::uint32_t>(all.size());
  if (ranks == 1) return keys;
  const auto edge = [&](std::uint32_t from, std::uint32_t peer) -> PacketKey {
    const std::optional<PacketKey> shared = shared_with(all[peer]);
    return shared ? life.keyed(shared->bytes()).derived("netsum pads edge", from) : PacketKey();
  };
  const std::uint32_t before = rank == 0 ? ranks - 1 : rank - 1;
  const bool has_next = ranks > 2 || rank == 0, has_previous = ranks > 2 || rank == 1;
  if (has_next) keys.next = edge(rank, (rank + 1) % ranks);
  if (has_previous) keys.previous = edge(before, before);
  const bool all_there = (keys.next || !has_next) && (keys.previous || !has_previous);
  return all_there ? std::optional(keys) : std::nullopt;
}

Pads::Pads(const PadKeys& keys, std::uint32_t rank) : out_(keys.out), gives_out_(rank == 0) {
  if (keys.next) next_.emplace(keys.next);
  if (keys.previous) previous_.emplace(keys.previous);
}

void Pads::mask_term(std::span<std::byte> values, std::size_t width, PadPlace place) const {
  std::array<PadTerm, 3> terms{};
  std::size_t count = 0;
  if (next_) terms[count++] = {&*next_, true};
  if (previous_) terms[count++] = {&*previous_, false};
  if (gives_out_) terms[count++] = {&out_, true};
  apply_pads(values.data(), values, width, place, std::span(terms).first(count));
}

void Pads::mask_only(std::span<std::byte> values, std::size_t width, PadPlace place) const {
  const PadTerm term{&out_, true};
  apply_pads(values.data(), values, width, place, {&term, 1});
}

void Pads::unmask(std::byte* to, std::span<const std::byte> sum, std::size_t width, PadPlace place) const {
  const PadTerm term{&out_, false};
  apply_pads(to, sum, width, place, {&term, 1});
}

}  // namespace netsum::seal
