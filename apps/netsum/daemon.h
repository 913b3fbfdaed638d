// Common parts of the daemons: signals, the line with the listening address, and shutdown.
#pragma once

#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "command.h"
#include "netsum/error.h"

namespace netsum::app {

// Blocks SIGTERM, SIGINT and SIGHUP for this thread and threads that it starts, so that only wait_for_stop() takes them.
[[nodiscard]] sigset_t block_stop_signals();
// `reload` is called for each SIGHUP. Meanwhile the service manager hears that this process lives, if it wants to.
void wait_for_stop(const sigset_t& signals, const std::function<void()>& reload);

// Raises the limit to the system's maximum, so that the control plane's own connection limits are the effective ones.
void raise_descriptor_limit();

// Tells systemd, where it started this process as a service of Type=notify: "READY=1", "STOPPING=1", ...
void tell_service_manager(const std::string& state);

void log_line(const std::string& line);

// Throws UsageError: one is given without the other.
void check_tls_pair(const std::string& certificate, const std::string& key);

// SWITCH=PARENT[,...]; throws UsageError.
[[nodiscard]] std::map<std::string, std::string> parse_switch_parents(const std::string& text);

// Runs until SIGTERM or SIGINT. `start` makes the daemon, `reload` reads its files again on SIGHUP, `ready` logs its start,
// and `ended` its outcome. A daemon without an address does not listen.
template <class Start, class Reload, class Ready, class Ended>
int run_daemon(Start start, Reload reload, Ready ready, Ended ended) {
  const sigset_t stop = block_stop_signals();
  raise_descriptor_limit();
  auto daemon = [&] {
    try {
      return start();
    } catch (const Error& error) {
      // An address in use is this command's failure, not a refusal by an aggregator.
      if (error.code() == ErrorCode::refused) throw std::runtime_error(error.what());
      throw;
    }
  }();
  const std::string address = daemon.address();
  std::printf(address.empty() ? "ready\n" : "listening %s\n", address.c_str());
  std::fflush(stdout);
  ready(address);
  tell_service_manager("READY=1");
  wait_for_stop(stop, [&] { reload(daemon); });
  ended(daemon);
  return exit_done;
}
template <class Start, class Reload, class Ready>
int run_daemon(Start start, Reload reload, Ready ready) {
  return run_daemon(start, reload, ready, [](const auto&) {});
}

}  // namespace netsum::app
