#include "packet_security.h"

namespace netsum::app {

std::optional<PacketSecurity> packet_security_named(const std::string& name) {
  if (name.empty()) return std::nullopt;
  for (const PacketSecurity security : {PacketSecurity::none, PacketSecurity::tag, PacketSecurity::encrypt}) {
    if (name == to_string(security)) return security;
  }
  throw UsageError("--packet-security must be none, tag or encrypt, not '" + name + "'");
}

KeySettings::KeySettings(Settings& settings) {
  settings.add("packet-security", security_, "HOW",
               "Protection of packets between hosts: none, tag (the default with TLS) or encrypt; ranks may ask for more");
  settings.add_flag("require-keys", required_, "Refuse jobs without packet keys; keys require TLS");
}

}  // namespace netsum::app
