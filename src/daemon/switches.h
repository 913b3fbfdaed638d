// The switches below an aggregator or a parameter server: options of the teller, and the endpoints of both ends.
#pragma once

#include <string>
#include <vector>

#include "base/endpoint.h"
#include "control/credentials.h"
#include "control/switch_teller.h"
#include "session/registry.h"

namespace netsum::daemon {

// `own`: this process in words, for errors. Switches that are parents of others are greeted at once.
[[nodiscard]] control::SwitchTellerOptions switch_teller_options(const control::Credentials& credentials,
                                                                 const std::string& tls_ca, const std::string& own,
                                                                 const session::RegistryConfig& registry);

// Gives lanes that listen on every address this one, which is numeric.
void complete_lanes(std::vector<Endpoint>& lanes, const std::string& numeric_address);

// This process's lanes, as a switch reaches them: where they listen on every address, the source address of the route to the
// switch. Throws Error: unreachable.
[[nodiscard]] std::vector<Endpoint> own_endpoints(const std::vector<Endpoint>& lanes, const Endpoint& peer);

}  // namespace netsum::daemon
