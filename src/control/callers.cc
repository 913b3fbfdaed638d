#include "control/callers.h"

#include "control/clock.h"

namespace netsum::control {
namespace {

std::string host_in(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

}  // namespace

Callers::Callers(const std::string& token, const std::string& daemon_token, const std::vector<Tenant>& tenants,
                 Journal& journal)
    : journal_(journal), tenants_(std::make_shared<const Tenants>(token.empty() ? Tenants(tenants) : Tenants::one(token))) {
  if (!daemon_token.empty()) daemons_ = Tenants::one(daemon_token);
}

std::shared_ptr<const Tenants> Callers::tenants_now() {
  const std::lock_guard lock(mutex_);
  return tenants_;
}

Verdict Callers::judge(const Proofs& proofs, const std::string& transcript, const std::string& peer) {
  const auto known = tenants_now();
  Verdict verdict;
  Principal principal;
  if (!daemons_.empty() && !proofs.daemon_token.empty()) {
    const Tenant* const daemon = daemons_.prove(proofs.daemon_token, transcript, "Connect", "");
    principal.daemon = daemon != nullptr;
    if (daemon != nullptr) verdict.token = daemon->token;
    if (daemon == nullptr) journal_.wrong_token(host_in(peer), "showed a wrong daemon token");
  }
  if (known->empty()) {
    if (!proofs.daemon_token.empty() && !daemons_.empty() && !principal.daemon) {
      verdict.why = no_daemon;
      return verdict;
    }
    verdict.principal = std::move(principal);
    return verdict;
  }
  if (proofs.token.empty()) {
    if (principal.daemon) {
      verdict.principal = std::move(principal);
    } else {
      verdict.why = no_token;
    }
    return verdict;
  }
  const Tenant* const tenant = known->prove_former(proofs.token, transcript, "Connect", "");
  if (tenant == nullptr) {
    const bool formerly = known->knows(proofs.token) == Tenants::Known::formerly;
    journal_.wrong_token(host_in(peer), formerly ? "showed a revoked token" : "showed a wrong token");
    verdict.why = formerly ? revoked : "wrong token: the daemon does not know the token in --token-file (NETSUM_TOKEN_FILE)";
    return verdict;
  }
  principal.tenant = tenant->name;
  principal.number = number_in(proofs.token);
  verdict.token = tenant->token;
  verdict.principal = std::move(principal);
  return verdict;
}

std::map<std::string, session::Quota> Callers::set_tenants(const std::vector<Tenant>& list) {
  std::map<std::string, session::Quota> quotas;
  for (const Tenant& tenant : list) quotas[tenant.name] = {tenant.memory_bytes, tenant.jobs, tenant.joins};
  Tenants fresh(list);
  fresh.succeed(*tenants_now());
  auto known = std::make_shared<const Tenants>(std::move(fresh));
  const std::lock_guard lock(mutex_);
  tenants_ = std::move(known);
  return quotas;
}

bool Callers::is_revoked(const Principal& principal) {
  return !principal.number.empty() && tenants_now()->find(principal.number) == nullptr;
}

bool Callers::sees_all(const Principal& principal) {
  if (principal.daemon || principal.number.empty()) return true;
  const auto known = tenants_now();
  const Tenant* const tenant = known->find(principal.number);
  return tenant != nullptr && tenant->sees_all;
}

telemetry::PageAdmittance::Viewer Callers::viewer(std::string_view proof) {
  const auto tenants = tenants_now();
  for (const int ago : {0, 1}) {
    const Tenant* const tenant = tenants->prove(proof, page_challenge(ago), "Page", "");
    if (tenant != nullptr) return {tenant->name, tenant->sees_all};
  }
  return {"", false};
}

std::string Callers::page_challenge(int intervals_ago) const {
  constexpr Duration interval = std::chrono::seconds(30);
  return challenge_ + "." + std::to_string(now().time_since_epoch() / interval - intervals_ago);
}

}  // namespace netsum::control
