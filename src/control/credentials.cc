#include "control/credentials.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "control/digest.h"
#include "netsum/error.h"

namespace netsum::control {
namespace {

constexpr std::size_t least_token = 16, longest_name = 64;
constexpr std::size_t number_digits = 16;
constexpr std::size_t most_revoked = 4096;

std::string digest(std::string_view token, std::string_view text) {
  return hexadecimal(hmac_sha256(token, text));
}

std::string number_of(const std::string& token) {
  return digest(token, "netsum: the number of this token").substr(0, number_digits);
}

}  // namespace

std::string new_challenge() {
  const std::string nonce = new_nonce();
  return hexadecimal({reinterpret_cast<const std::uint8_t*>(nonce.data()), nonce.size()});
}

std::string proof_of(const std::string& token, std::string_view challenge, std::string_view call, std::string_view request) {
  // Only the last part may have a line break, so that no two calls have the same text.
  std::string text = "netsum control\n";
  text.append(challenge).append("\n").append(call).append("\n").append(request);
  return number_of(token) + ":" + digest(token, text);
}

std::string_view number_in(std::string_view proof) {
  return proof.substr(0, number_digits);
}

seal::PacketKey session_key(const std::string& token, std::string_view transcript) {
  const auto bytes = hmac_sha256(token, "netsum control, tags of frames\n" + std::string(transcript));
  return seal::PacketKey(std::as_bytes(std::span(bytes)));
}

Tenants::Tenants(const std::vector<Tenant>& tenants) {
  std::set<std::string> names;
  for (const Tenant& tenant : tenants) {
    const bool printable =
        std::all_of(tenant.name.begin(), tenant.name.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (tenant.name.empty() || tenant.name.size() > longest_name || !printable) {
      throw Error(ErrorCode::bad_argument,
                  "a tenant's name has 1 to " + std::to_string(longest_name) + " printable ASCII characters, and no spaces");
    }
    if (!names.insert(tenant.name).second)
      throw Error(ErrorCode::bad_argument, "two tenants are called '" + tenant.name + "'");
    add(tenant, tenant.token);
    if (!tenant.second_token.empty()) add(tenant, tenant.second_token);
  }
}

void Tenants::add(Tenant tenant, const std::string& token) {
  if (token.size() < least_token) {
    throw Error(ErrorCode::bad_argument, "a token of tenant '" + tenant.name + "' has fewer than " +
                                             std::to_string(least_token) +
                                             " characters: make one with `openssl rand -hex 16`");
  }
  tenant.token = token;
  const std::string name = tenant.name;
  const auto [place, is_new] = by_number_.try_emplace(number_of(token), std::move(tenant));
  if (is_new) return;
  throw Error(ErrorCode::bad_argument,
              place->second.name == name
                  ? "tenant '" + name + "' has the same token twice: one is enough"
                  : "tenants '" + place->second.name + "' and '" + name + "' have the same token: give each its own");
}

namespace {

const Tenant* proved(const std::map<std::string, Tenant, std::less<>>& by_number, std::string_view proof,
                     std::string_view challenge, std::string_view call, std::string_view request) {
  const auto found = by_number.find(proof.substr(0, number_digits));
  if (found == by_number.end()) return nullptr;
  const std::string expected = proof_of(found->second.token, challenge, call, request);
  const bool same = proof.size() == expected.size() && CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
  return same ? &found->second : nullptr;
}

}  // namespace

const Tenant* Tenants::prove(std::string_view proof, std::string_view challenge, std::string_view call,
                             std::string_view request) const {
  return proved(by_number_, proof, challenge, call, request);
}

const Tenant* Tenants::prove_former(std::string_view proof, std::string_view challenge, std::string_view call,
                                    std::string_view request) const {
  const Tenant* const tenant = prove(proof, challenge, call, request);
  return tenant != nullptr ? tenant : proved(revoked_, proof, challenge, call, request);
}

const Tenant* Tenants::find(std::string_view number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : &found->second;
}

Tenants::Known Tenants::knows(std::string_view proof) const {
  const std::string_view number = number_in(proof);
  if (by_number_.contains(number)) return Known::yes;
  return revoked_.contains(number) ? Known::formerly : Known::no;
}

void Tenants::succeed(const Tenants& former) {
  if (former.revoked_.size() < most_revoked) revoked_ = former.revoked_;
  revoked_.insert(former.by_number_.begin(), former.by_number_.end());
  std::erase_if(revoked_, [&](const auto& entry) { return by_number_.contains(entry.first); });
}

Tenants Tenants::one(std::string token) {
  Tenants tenants;
  Tenant owner;
  owner.sees_all = true;
  const std::string number = number_of(token);
  owner.token = std::move(token);
  tenants.by_number_.emplace(number, std::move(owner));
  return tenants;
}

}  // namespace netsum::control
