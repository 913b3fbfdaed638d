#include "daemon.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>

#include "base/numbers.h"
#include "transport/socket.h"

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
  // systemd's watchdog wants to hear from the process within this time: say so twice in it.
  const char* const watchdog = std::getenv("WATCHDOG_USEC");
  const auto within = watchdog == nullptr ? std::nullopt : parse_number<std::uint64_t>(watchdog);
  const std::uint64_t pause = std::max<std::uint64_t>(within.value_or(0) / 2, 1000);  // microseconds
  while (true) {
    const timespec time{static_cast<time_t>(pause / 1'000'000), static_cast<long>(pause % 1'000'000) * 1000};
    const int signal = within ? sigtimedwait(&signals, nullptr, &time) : sigwaitinfo(&signals, nullptr);
    if (signal == SIGHUP) reload();
    if (signal < 0 && errno == EAGAIN) tell_service_manager("WATCHDOG=1");
    if (signal < 0 || signal == SIGHUP) continue;
    spdlog::info("{}: stopping", sigabbrev_np(signal));
    return tell_service_manager("STOPPING=1");
  }
}

void tell_service_manager(const std::string& state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || path[0] == '\0' || std::strlen(path) >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, std::strlen(path));
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const transport::Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  // Nobody to tell is no reason to end.
  static_cast<void>(::sendto(socket.number(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                             reinterpret_cast<const sockaddr*>(&address), length));
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
