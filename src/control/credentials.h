// Tokens on the control plane: shown to be known, never sent. A daemon issues a challenge, new at every start; whoever calls
// sends a keyed digest of it, of the call's name and of the request. What is overheard opens nothing but that same call, and
// a daemon at an address that somebody made up learns nothing that another daemon accepts for another request.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "netsum/tenant.h"

namespace netsum::control {

inline constexpr char challenge_key[] = "netsum-challenge";        // metadata of a refusal for want of a proof
inline constexpr char proof_key[] = "netsum-proof";                // and of a call: the tenant's token
inline constexpr char daemon_proof_key[] = "netsum-daemon-proof";  // the token that daemons have

[[nodiscard]] std::string new_challenge();  // throws Error: the random number generator failed
// "TOKEN'S NUMBER:DIGEST", in hexadecimal digits.
[[nodiscard]] std::string proof_of(const std::string& token, std::string_view challenge, std::string_view call,
                                   std::string_view request);

// A caller's side: its tokens, and the challenge that a daemon has issued last. Any thread.
class Credentials {
 public:
  Credentials(std::string token, std::string daemon_token)
      : token_(std::move(token)), daemon_token_(std::move(daemon_token)) {}

  [[nodiscard]] bool empty() const { return token_.empty() && daemon_token_.empty(); }
  // Metadata of a call, by key; none, if there is no challenge yet.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> proofs(std::string_view call,
                                                                        std::string_view request) const;
  // Whether to call once more: the daemon has another challenge than the one that was known.
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
  explicit Tenants(std::vector<Tenant> tenants);

  // Of a daemon whose one token opens everything: tenant "" has all jobs, and no quota.
  [[nodiscard]] static Tenants one(std::string token);

  // By its token; null: the proof is none of a token that is known here.
  [[nodiscard]] const Tenant* prove(std::string_view proof, std::string_view challenge, std::string_view call,
                                    std::string_view request) const;
  [[nodiscard]] bool empty() const { return by_number_.empty(); }

 private:
  std::map<std::string, Tenant, std::less<>> by_number_;  // that a token has: not secret
};

}  // namespace netsum::control
