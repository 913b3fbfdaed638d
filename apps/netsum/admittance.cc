#include "admittance.h"

#include <spdlog/spdlog.h>

#include "base/endpoint.h"
#include "tenants.h"
#include "transport/addresses.h"

namespace netsum::app {
namespace {

// Nobody on another host gets there.
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
               "Workers must know the secret in the first line of this file; it is never sent");
  settings.add("tenants", tenants_file_, "FILE",
               "TOML file of tenants, each with a token, jobs and limits of its own; read again on SIGHUP");
  settings.add("daemon-token-file", daemon_token_file_, "FILE",
               "Secret of daemons, in the first line: only daemons that know it may tell this one of jobs");
  settings.add_flag("anyone-may-join", anyone_may_join_,
                    "Listen on an address that other hosts reach although there is no token");
  settings.add("memory-mib", memory_mib_, "MIB", "Memory that all jobs together may have").positive();
}

void Admittance::resolve(const std::string& listen) {
  token_ = read_token(token_file_);
  daemon_token_ = read_token(daemon_token_file_, "--daemon-token-file");
  if (!token_file_.empty() && !tenants_file_.empty()) {
    throw UsageError("--token-file and --tenants exclude each other: with --tenants every tenant has a token of its own");
  }
  if (!tenants_file_.empty()) tenants_ = read();
  if (!token_.empty() || !tenants_.empty() || anyone_may_join_ || listen.empty() || is_loopback(listen)) return;
  throw UsageError(
      "other hosts reach --listen " + listen +
      ", and without a token whoever reaches it may join jobs, end them and read their status: pass "
      "--token-file FILE (`openssl rand -hex 16` makes a token), or --tenants FILE for several users, or listen on "
      "127.0.0.1, or pass --anyone-may-join if the network is trusted");
}

std::vector<Tenant> Admittance::read() const {
  return parse_tenants(read_whole(tenants_file_), tenants_file_);
}

void Admittance::say(const std::string& line) {
  spdlog::info("{}", line);
}

}  // namespace netsum::app
