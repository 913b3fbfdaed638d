// Settings of what protects packets between hosts.
#pragma once

#include <optional>
#include <string>

#include "config.h"
#include "netsum/types.h"

namespace netsum::app {

// none, tag or encrypt; empty: not given. Throws UsageError.
[[nodiscard]] std::optional<PacketSecurity> packet_security_named(const std::string& name);

// Of `netsum switch` and `netsum ps`.
class KeySettings {
 public:
  explicit KeySettings(Settings& settings);

  // Throws UsageError.
  template <class Options>
  void apply(Options& options) const {
    options.packet_security = packet_security_named(security_);
    options.require_keys = required_;
  }

 private:
  std::string security_;
  bool required_ = false;
};

}  // namespace netsum::app
