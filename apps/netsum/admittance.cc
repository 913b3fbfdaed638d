#include "admittance.h"

#include <spdlog/spdlog.h>

#include "base/endpoint.h"
#include "tenants.h"
#include "transport/addresses/addresses.h"

namespace netsum::app {
namespace {

constexpr const char* tenants_instead = ", or --tenants FILE for several users";

// Whether no other host can reach the address.
bool is_loopback(const std::string& listen) {
  const Endpoint endpoint = transport::resolve(listen);
  if (transport::is_ipv4(endpoint)) return endpoint.address[12] == 127;
  Endpoint loopback;
  loopback.address[15] = 1;
  return endpoint.address == loopback.address;
}

}  // namespace

Admittance::Admittance(Settings& settings) {
  settings.add("token-file", token_file_, "FILE",
               "File with the secret of the workers in its first line; the secret is never sent");
  settings.add_flag("anyone-may-join", anyone_may_join_,
                    "Allow --listen on an address that other hosts reach, without a token");
}

std::string Admittance::resolve(const std::string& listen, const std::string& others) const {
  std::string token = read_token(token_file_);
  if (token.empty() && !listen.empty()) check_reach(listen, others);
  return token;
}

void Admittance::check_reach(const std::string& listen, const std::string& others) const {
  if (anyone_may_join_ || is_loopback(listen)) return;
  throw UsageError(
      "--listen " + listen +
      " is reachable from other hosts, and without a token any of them may join jobs, end them and read their status: pass "
      "--token-file FILE (`openssl rand -hex 16` makes a token)" +
      others +
      ", or listen on "
      "127.0.0.1, or pass --anyone-may-join if the network is trusted");
}

void Admittance::check_reach_without_tokens(const std::string& listen) const {
  if (anyone_may_join_ || is_loopback(listen)) return;
  throw UsageError(
      "--listen " + listen +
      " is reachable from other hosts, and this protocol has no tokens: any of them may begin sessions and send "
      "into them; pass --anyone-may-join if the network is trusted, or listen on 127.0.0.1");
}

TenantAdmittance::TenantAdmittance(Settings& settings) : settings_(settings), secret_(settings) {
  settings.add("tenants", tenants_file_, "FILE",
               "TOML file of tenants, each with a token, jobs and limits of its own; read again on SIGHUP");
  settings.add("daemon-token-file", daemon_token_file_, "FILE",
               "File with the secret of daemons in its first line: only daemons that have it may install jobs at this one");
  settings.add("memory-mib", memory_mib_, "MIB", "Memory that all jobs together may have").positive();
}

void TenantAdmittance::resolve(const std::string& listen) {
  // A file of the unit's environment is no wish of whoever names tenants (etc/systemd).
  const bool asked = settings_.origin("token-file") != "NETSUM_TOKEN_FILE";
  if (!secret_.token_file().empty() && asked && !tenants_file_.empty()) {
    throw UsageError("--token-file and --tenants exclude each other: with --tenants every tenant has a token of its own");
  }
  daemon_token_ = read_token(daemon_token_file_, "--daemon-token-file");
  if (tenants_file_.empty()) {
    token_ = secret_.resolve(listen, tenants_instead);
  } else {
    tenants_ = read();
    if (tenants_.empty()) secret_.check_reach(listen, tenants_instead);
  }
}

std::vector<Tenant> TenantAdmittance::read() const {
  return parse_tenants(read_whole(tenants_file_), tenants_file_);
}

void TenantAdmittance::say(const std::string& line) {
  spdlog::info("{}", line);
}

}  // namespace netsum::app
