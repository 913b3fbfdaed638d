// Whether a daemon gives its jobs keys for their packets.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "netsum/types.h"
#include "session/registry.h"

namespace netsum::daemon {

struct PacketSecurityOptions {
  std::optional<PacketSecurity> wanted{};
  bool required = false;         // no job without keys
  bool tls = false;              // the control channel is secret
  bool tls_to_switches = false;  // and those of the switches below
};
// Throws Error: bad_argument, if there can be no keys.
void choose_keys(const PacketSecurityOptions& options, session::RegistryConfig& registry);

// Once, if hosts in between can change the sums of jobs. No host is between processes that use the loopback device.
void warn_of_no_keys(const session::RegistryConfig& registry, const std::string& listen,
                     const std::function<void(const std::string&)>& log);

}  // namespace netsum::daemon
