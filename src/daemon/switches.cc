#include "daemon/switches.h"

#include <set>

#include "daemon/data_sockets.h"
#include "daemon/proved_endpoints.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/path.h"

namespace netsum::daemon {

control::SwitchTellerOptions switch_teller_options(const control::Credentials& credentials, const std::string& tls_ca,
                                                   const std::string& own, const session::RegistryConfig& registry) {
  control::SwitchTellerOptions options;
  options.token = credentials.token;
  options.tls_ca = tls_ca;
  options.daemon_token = credentials.daemon_token;
  options.own = own;
  std::set<std::string> parents;
  for (const auto& [switch_id, parent] : registry.switch_parents) parents.insert(parent);
  options.kept.assign(parents.begin(), parents.end());
  return options;
}

void complete_lanes(std::vector<Endpoint>& lanes, const std::string& numeric_address) {
  const Endpoint reached = transport::resolve(numeric_address);  // no name look-up
  for (Endpoint& lane : lanes) {
    if (!transport::is_unspecified(lane)) continue;
    lane.address = reached.address;
    lane.scope = reached.scope;
  }
  check_lanes(lanes, reached);
}

std::vector<Endpoint> own_endpoints(const std::vector<Endpoint>& lanes, const Endpoint& peer) {
  std::vector<Endpoint> own = lanes;
  for (Endpoint& lane : own) {
    if (!transport::is_unspecified(lane)) continue;
    const std::uint16_t port = lane.port;
    lane = transport::path_towards(peer).local;
    lane.port = port;
  }
  return own;
}

}  // namespace netsum::daemon
