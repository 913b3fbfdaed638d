// Who calls a daemon: tenants and other daemons, by the tokens that they prove to know.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/credentials.h"
#include "control/ends.h"
#include "control/journal.h"
#include "netsum/tenant.h"
#include "session/registry.h"
#include "telemetry/metrics_server.h"

namespace netsum::control {

// Any thread; never waits but for the log.
class Callers {
 public:
  // What callers are told that have no token, a revoked one, or no daemon token.
  static constexpr char no_token[] = "this aggregator requires a token: pass --token-file (NETSUM_TOKEN_FILE)";
  static constexpr char revoked[] =
      "wrong token: the token in --token-file (NETSUM_TOKEN_FILE) was revoked: it is no longer in the daemon's --tenants "
      "file";
  static constexpr char no_daemon[] =
      "this switch takes jobs only from daemons that have its daemon token: give both daemons the same --daemon-token-file";

  // Empty tokens: none is needed. Throws Error: bad_argument, for tenants.
  Callers(const std::string& token, const std::string& daemon_token, const std::vector<Tenant>& tenants, Journal& journal);

  // DaemonEnd's manners.
  [[nodiscard]] std::pair<bool, bool> wants() { return {!tenants_now()->empty(), !daemons_.empty()}; }
  [[nodiscard]] Verdict judge(const Proofs& proofs, const std::string& transcript, const std::string& peer);

  // Applies from now on. Throws Error: bad_argument; the former tenants then stay.
  [[nodiscard]] std::map<std::string, session::Quota> set_tenants(const std::vector<Tenant>& list);

  [[nodiscard]] bool must_have_token() { return !tenants_now()->empty(); }
  [[nodiscard]] bool daemons_have_token() const { return !daemons_.empty(); }
  [[nodiscard]] bool is_revoked(const Principal& principal);
  [[nodiscard]] bool sees_all(const Principal& principal);

  // The page's viewers. Proofs travel to the page without TLS: one that is overheard opens it for a minute at most.
  [[nodiscard]] telemetry::PageAdmittance::Viewer viewer(std::string_view proof);
  [[nodiscard]] std::string page_challenge(int intervals_ago = 0) const;

 private:
  [[nodiscard]] std::shared_ptr<const Tenants> tenants_now();

  Journal& journal_;
  std::mutex mutex_;
  std::shared_ptr<const Tenants> tenants_;  // with mutex_
  Tenants daemons_;                         // that may tell this one of jobs; none: any caller that may join
  const std::string challenge_ = new_challenge();
};

}  // namespace netsum::control
