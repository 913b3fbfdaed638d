#include "jobs/public_keys.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace netsum::jobs {
namespace {

constexpr std::size_t key_bytes = std::tuple_size_v<seal::PublicKey>;

}  // namespace

PrivateAsk asked_by(const seal::Agreement& agreement, std::optional<std::uint8_t> fixed_exponent) {
  const seal::PublicKey& key = agreement.own();
  return {{reinterpret_cast<const char*>(key.data()), key.size()},
          agreement.fingerprint(),
          fixed_exponent ? *fixed_exponent + 1U : 0U};
}

std::vector<seal::PublicKey> keys_of(const std::vector<std::string>& texts) {
  std::vector<seal::PublicKey> keys(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) std::memcpy(keys[i].data(), texts[i].data(), key_bytes);
  return keys;
}

std::string check(const PrivateAsk& ask, std::uint32_t world_size) {
  if (ask.public_key.empty()) return "";
  if (ask.public_key.size() != key_bytes)
    return "the rank's public key does not have " + std::to_string(key_bytes) + " bytes";
  if (world_size > seal::most_private_ranks)
    return "private sums have at most " + std::to_string(seal::most_private_ranks) + " ranks";
  return "";
}

std::optional<session::Difference> compare(const PrivateAsk& first, const PrivateAsk& second) {
  const bool theirs = !first.public_key.empty(), ours = !second.public_key.empty();
  if (theirs != ours) return session::Difference{"private sums", theirs ? 1U : 0U, ours ? 1U : 0U};
  if (first.fingerprint != second.fingerprint)
    return session::Difference{"a job key with the fingerprint", first.fingerprint, second.fingerprint};
  if (first.fixed_exponent == second.fixed_exponent) return std::nullopt;
  return session::Difference{"a fixed scale, as the exponent of its blocks,", first.fixed_exponent, second.fixed_exponent};
}

std::string check_public_keys(const std::vector<std::string>& keys, const PrivateAsk& own, std::uint32_t rank,
                              std::uint32_t world_size) {
  const bool none = own.public_key.empty();
  if (keys.size() != (none ? 0 : world_size)) {
    return "the admission has public keys of " + std::to_string(keys.size()) + " ranks, and this rank asked for " +
           (none ? "sums that are not private" : "private sums of " + std::to_string(world_size) + " ranks");
  }
  if (none) return "";
  const auto good = [](const std::string& key) { return key.size() == key_bytes; };
  if (!std::all_of(keys.begin(), keys.end(), good)) return "a public key in the admission has a wrong length";
  if (keys[rank] == own.public_key) return "";
  return "the admission has another public key for rank " + std::to_string(rank) + " than the rank named";
}

}  // namespace netsum::jobs
