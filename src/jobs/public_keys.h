// What ranks whose sums are private (seal/private_sums.h) tell each other by way of an aggregator: their public keys, texts
// of 32 bytes in messages, and a fingerprint of the secret that all have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "seal/private_sums.h"
#include "session/protocol_rules.h"

namespace netsum::jobs {

struct PrivateAsk {
  std::string public_key;  // empty: this rank's sums are not private
  std::uint32_t fingerprint = 0;
  std::uint32_t fixed_exponent = 0;  // of all blocks, and 1; 0: blocks have their own
};
[[nodiscard]] PrivateAsk asked_by(const seal::Agreement& agreement, std::optional<std::uint8_t> fixed_exponent = {});

[[nodiscard]] std::vector<seal::PublicKey> keys_of(const std::vector<std::string>& texts);

// What is wrong with a rank's; empty: nothing.
[[nodiscard]] std::string check(const PrivateAsk& ask, std::uint32_t world_size);
// Whether one of two ranks has private sums and the other has not, or another secret.
[[nodiscard]] std::optional<session::Difference> compare(const PrivateAsk& first, const PrivateAsk& second);
// What is wrong with the public keys that a rank is told, which asked with `own`; empty: nothing.
[[nodiscard]] std::string check_public_keys(const std::vector<std::string>& keys, const PrivateAsk& own, std::uint32_t rank,
                                            std::uint32_t world_size);

}  // namespace netsum::jobs
