// Why calls to an aggregator fail: what a connection of its own finds out.
#pragma once

#include <string>

namespace netsum::control {

// In words, behind "aggregator HOST:PORT is not reachable: "; with advice. `tls_ca` empty: without TLS. Waits for a second
// or two at most.
[[nodiscard]] std::string diagnose(const std::string& address, const std::string& tls_ca);

}  // namespace netsum::control
