#include "daemon.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cstring>

namespace netsum::app {

sigset_t block_stop_signals() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  return stop;
}

void wait_for_stop(const sigset_t& signals, const std::function<void()>& reload) {
  int signal = 0;
  while (sigwait(&signals, &signal), signal == SIGHUP) reload();
  spdlog::info("{}: stopping", sigabbrev_np(signal));
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void log_line(const std::string& line) {
  spdlog::info("{}", line);
}

void check_tls_pair(const std::string& certificate, const std::string& key) {
  if (certificate.empty() != key.empty()) throw UsageError("--tls-cert and --tls-key go together");
}

std::map<std::string, std::string> parse_switch_parents(const std::string& text) {
  std::map<std::string, std::string> parents;
  for (const std::string& pair : split_list(text)) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) {
      throw UsageError("--switch-parent is SWITCH=PARENT, not '" + pair + "'");
    }
    parents[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return parents;
}

}  // namespace netsum::app
