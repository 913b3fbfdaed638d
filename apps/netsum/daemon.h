// Common parts of the daemons: signals, the line with the listening address, and shutdown.
#pragma once

#include <spdlog/async.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "command.h"
#include "netsum/error.h"

namespace netsum::app {

inline constexpr auto threads_help =
    "I/O threads; 0: one for each processor that this process may use, at most 8 or --lanes";
inline constexpr auto lanes_help =
    "Sockets at as many ports, each with its own slots: the most that a job has, which takes as many as this daemon or its "
    "ranks have threads; 0: one for each of --threads (always with --data-path or --data-plane other than sockets)";
[[nodiscard]] std::uint32_t threads_or_default(std::uint32_t threads, std::uint32_t lanes);

// Blocks SIGTERM, SIGINT and SIGHUP for this thread and threads that it starts, so that only wait_for_stop() takes them.
[[nodiscard]] sigset_t block_stop_signals();
// `reload` is called for each SIGHUP. Meanwhile the service manager hears that the daemon lives, if it wants to: each time
// that `alive` says so.
void wait_for_stop(const sigset_t& signals, const std::function<void()>& reload, const std::function<bool()>& alive);

// A daemon's log, as long as this lives: whoever reads it and stops delays nobody. Lines that find no place are lost, and
// counted in the log itself.
class PatientLog {
 public:
  PatientLog();
  ~PatientLog();  // waits for a moment for lines that are still to be written
  PatientLog(const PatientLog&) = delete;
  PatientLog& operator=(const PatientLog&) = delete;

 private:
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::logger> former_;
};

// Raises the limit to the system's maximum, so that the control plane's own connection limits are the effective ones.
void raise_descriptor_limit();

// Tells systemd, where it started this process as a service of Type=notify: "READY=1", "STOPPING=1", ...
void tell_service_manager(const std::string& state);

void log_line(const std::string& line);

// On SIGHUP. On an error the former certificate stays, and the log has the reason.
template <class Daemon>
void reload_certificate(Daemon& daemon, const std::string& certificate) {
  if (certificate.empty()) return log_line("SIGHUP: there is no --tls-cert to read again");
  try {
    daemon.reload_certificate();
    log_line("SIGHUP: the certificate from " + certificate);
  } catch (const std::exception& error) {
    log_line(std::string("warning: SIGHUP: the previous certificate stays in effect: ") + error.what());
  }
}

// SWITCH=PARENT[,...]; throws UsageError.
[[nodiscard]] std::map<std::string, std::string> parse_switch_parents(const std::string& text);

// Runs until SIGTERM or SIGINT. `start` makes the daemon, `reload` reads its files again on SIGHUP, `ready` logs its start,
// and `ended` its outcome. A daemon without an address does not listen.
template <class Start, class Reload, class Ready, class Ended>
int run_daemon(Start start, Reload reload, Ready ready, Ended ended) {
  const sigset_t stop = block_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // no reader's end is a daemon's
  const PatientLog patient_log;
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
  wait_for_stop(
      stop, [&] { reload(daemon); }, [&] { return daemon.alive(); });
  ended(daemon);
  return exit_done;
}
template <class Start, class Reload, class Ready>
int run_daemon(Start start, Reload reload, Ready ready) {
  return run_daemon(start, reload, ready, [](const auto&) {});
}

}  // namespace netsum::app
