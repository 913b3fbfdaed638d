// The switches below an aggregator or a parameter server: options of the teller, and the endpoints of both ends.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "control/switch_teller.h"
#include "session/registry.h"

namespace netsum::daemon {

// `DaemonOptions`: AggregatorOptions, ParameterServerOptions. `own`: this process in words, for errors. Switches that are
// parents of others are greeted at once.
template <class DaemonOptions>
[[nodiscard]] control::SwitchTellerOptions switch_teller_options(const DaemonOptions& daemon, const std::string& own,
                                                                 const session::RegistryConfig& registry) {
  control::SwitchTellerOptions options;
  options.token = daemon.token;
  options.tls_ca = daemon.tls_ca;
  options.daemon_token = daemon.daemon_token;
  options.own = own;
  options.lanes = registry.lanes;
  std::set<std::string> parents;
  for (const auto& [a_switch, parent] : registry.switch_parents) parents.insert(parent);
  options.kept.assign(parents.begin(), parents.end());
  return options;
}

// Gives lanes that listen on every address this one, which is numeric.
void complete_lanes(std::vector<Endpoint>& lanes, const std::string& numeric_address);

// This process's lanes, as a switch reaches them: where they listen on every address, the source address of the route to the
// switch. Throws Error: unreachable.
[[nodiscard]] std::vector<Endpoint> own_endpoints(const std::vector<Endpoint>& lanes, const Endpoint& a_switch);

}  // namespace netsum::daemon
