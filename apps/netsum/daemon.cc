#include "daemon.h"

#include <cstring>

namespace netsum::app {

sigset_t block_stop_signals() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  return stop;
}

void wait_for_stop(const sigset_t& signals) {
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("{}: stopping", sigabbrev_np(signal));
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
