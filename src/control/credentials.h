// Tokens on the control plane: proved, never sent. A proof is a keyed digest of a challenge that is never used again; the
// same token keys the tags of the connection's frames (frames.h). Who overhears all of it learns no token, and can neither
// repeat a request nor change one.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "netsum/tenant.h"
#include "seal/packet_key.h"

namespace netsum::control {

[[nodiscard]] std::string new_challenge();  // throws Error: the random number generator failed
// "TOKEN'S NUMBER:DIGEST", in hexadecimal digits.
[[nodiscard]] std::string proof_of(const std::string& token, std::string_view challenge, std::string_view call,
                                   std::string_view request);

// The token's number in a proof; not secret.
[[nodiscard]] std::string_view number_in(std::string_view proof);

// A caller's tokens.
struct Credentials {
  std::string token, daemon_token;
};
// The key of a connection's tags. `transcript`: as of a proof.
[[nodiscard]] seal::PacketKey session_key(const std::string& token, std::string_view transcript);

// The tenants that a daemon knows.
class Tenants {
 public:
  Tenants() = default;
  // Throws Error: bad_argument, if names or tokens are missing, too short, or used twice.
  explicit Tenants(const std::vector<Tenant>& tenants);

  // For a daemon with a single token for everything: tenant "" owns all jobs, without a quota.
  [[nodiscard]] static Tenants one(std::string token);

  // The tenant whose token the proof shows; null: none that is known here.
  [[nodiscard]] const Tenant* prove(std::string_view proof, std::string_view challenge, std::string_view call,
                                    std::string_view request) const;
  [[nodiscard]] bool empty() const { return by_number_.empty(); }

  // The tenant of a token's number; null: the token is not known, or no longer.
  [[nodiscard]] const Tenant* find(std::string_view number) const;
  // The token of a proof that may be of another challenge.
  enum class Known : std::uint8_t { no, yes, formerly };
  [[nodiscard]] Known knows(std::string_view proof) const;
  // As prove(), also by a token that was revoked.
  [[nodiscard]] const Tenant* prove_former(std::string_view proof, std::string_view challenge, std::string_view call,
                                           std::string_view request) const;
  // These take the place of `former`: the tokens that are gone were revoked.
  void succeed(const Tenants& former);

 private:
  void add(Tenant tenant, const std::string& token);

  std::map<std::string, Tenant, std::less<>> by_number_;  // by a token's number, which is not secret; with that token
  std::map<std::string, Tenant, std::less<>> revoked_;    // of the latest change, and as many as fit before
};

}  // namespace netsum::control
