#include "daemon/packet_security.h"

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"

namespace netsum::daemon {

void choose_keys(const PacketSecurityOptions& options, session::RegistryConfig& registry) {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
  if (options.required && options.wanted == PacketSecurity::none) {
    throw bad("--require-keys requires --packet-security tag or encrypt, not none");
  }
  const bool wanted = options.wanted.value_or(PacketSecurity::none) != PacketSecurity::none;
  if (!options.tls && (options.required || wanted)) {
    throw bad(std::string(options.required ? "--require-keys" : "--packet-security") +
              " requires --tls-cert and --tls-key: packet keys are sent over TLS only");
  }
  registry.keys = options.tls;
  registry.keys_below = options.tls && options.tls_to_switches;
  registry.keys_required = options.required;
  registry.security = options.tls ? options.wanted.value_or(PacketSecurity::tag) : PacketSecurity::none;
}

void warn_of_no_keys(const session::RegistryConfig& registry, const std::string& listen,
                     const std::function<void(const std::string&)>& log) {
  if (registry.security != PacketSecurity::none || !log) return;
  const auto interface = transport::interface_of(transport::resolve(listen));
  if (interface && interface->loopback) return;
  log(std::string("warning: packets have no keys ") +
      (registry.keys ? "(--packet-security none)" : "(no --tls-cert and --tls-key)") +
      ": any host that can send from a rank's address, or read packets on the way, can change the sums of its job");
}

}  // namespace netsum::daemon
