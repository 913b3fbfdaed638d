#include "daemon_call.h"

#include <cstdint>

#include "transport/addresses/switch_list.h"

namespace netsum::app {

DaemonCall::DaemonCall(Settings& settings) {
  settings.add("switch", address_, "HOST:PORT",
               "The daemon: an aggregator, a parameter server or a bump; or srv:NAME or @FILE, if it names one");
  settings.add("token-file", token_file_, "FILE", "File with the daemon's secret in its first line");
  settings.add("daemon-token-file", daemon_token_file_, "FILE",
               "File with the daemon's own secret in its first line; at a daemon with tenants it gives access to all jobs");
  settings.add("tls-ca", tls_ca_, "FILE", "PEM file of trusted CAs: use TLS on the control channel");
  settings.add("connect-deadline", deadline_seconds_, "SECONDS", "Deadline for the answer").between(0.001, 1e6);
}

control::Client DaemonCall::client() const {
  if (address_.empty()) throw UsageError("no daemon is named: give --switch HOST:PORT, or set NETSUM_SWITCH");
  return control::Client({transport::one_switch(address_), read_token(token_file_), tls_ca_,
                          read_token(daemon_token_file_, "--daemon-token-file")});
}

std::chrono::milliseconds DaemonCall::deadline() const {
  return std::chrono::milliseconds(static_cast<std::int64_t>(deadline_seconds_ * 1e3));
}

}  // namespace netsum::app
