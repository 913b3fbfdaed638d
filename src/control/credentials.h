// Tokens on the control plane: proved, never sent. A daemon issues a challenge, new at every start; a caller sends a keyed
// digest of the challenge, the call's name and the request. An overheard proof opens only that same call, and a rogue daemon
// learns nothing that another daemon accepts for another request.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "netsum/tenant.h"

namespace netsum::control {

inline constexpr char challenge_key[] = "netsum-challenge";        // metadata of a refusal for lack of a proof
inline constexpr char proof_key[] = "netsum-proof";                // metadata of a call: proves the tenant's token
inline constexpr char daemon_proof_key[] = "netsum-daemon-proof";  // proves the daemons' token

[[nodiscard]] std::string new_challenge();  // throws Error: the random number generator failed
// "TOKEN'S NUMBER:DIGEST", in hexadecimal digits.
[[nodiscard]] std::string proof_of(const std::string& token, std::string_view challenge, std::string_view call,
                                   std::string_view request);

// A caller's side: its tokens, and the daemon's latest challenge. Any thread.
class Credentials {
 public:
  Credentials(std::string token, std::string daemon_token)
      : token_(std::move(token)), daemon_token_(std::move(daemon_token)) {}

  [[nodiscard]] bool empty() const { return token_.empty() && daemon_token_.empty(); }
  // Metadata of a call, by key; none before the first challenge.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> proofs(std::string_view call,
                                                                        std::string_view request) const;
  // Whether to call once more: the challenge is a new one.
  [[nodiscard]] bool learn(std::string_view challenge);

 private:
  const std::string token_, daemon_token_;
  mutable std::mutex mutex_;
  std::string challenge_;
};

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
