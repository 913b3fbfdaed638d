#include "daemon.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "base/numbers.h"
#include "runtime/cpus.h"
#include "transport/system/socket.h"

namespace netsum::app {
namespace {

constexpr std::size_t most_lines = 4096;  // that wait to be written
constexpr std::chrono::milliseconds for_last_lines{1000};

// Writes to stderr without stdio: exit() would wait for its lock.
class LogSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit LogSink(spdlog::details::thread_pool& pool) : pool_(pool) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::size_t lost = pool_.overrun_counter();
    if (lost != told_) {
      const std::string text =
          "warning: " + std::to_string(lost - told_) + " lines of the log were lost: its reader is slow";
      told_ = lost;
      write(spdlog::details::log_msg(message.logger_name, message.level, text));
    }
    write(message);
  }
  void flush_() override {}

  void write(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (std::size_t at = 0; at < line.size();) {
      const ssize_t count = ::write(STDERR_FILENO, line.data() + at, line.size() - at);
      if (count < 0 && errno != EINTR) return;  // nobody reads it
      if (count > 0) at += static_cast<std::size_t>(count);
    }
  }

  spdlog::details::thread_pool& pool_;
  std::size_t told_ = 0;
};

}  // namespace

PatientLog::PatientLog()
    : pool_(std::make_shared<spdlog::details::thread_pool>(most_lines, 1)), former_(spdlog::default_logger()) {
  auto logger = std::make_shared<spdlog::async_logger>("netsum", std::make_shared<LogSink>(*pool_), pool_,
                                                       spdlog::async_overflow_policy::overrun_oldest);
  logger->set_pattern(log_pattern);
  spdlog::set_default_logger(std::move(logger));
}

PatientLog::~PatientLog() {
  spdlog::set_default_logger(std::move(former_));
  const auto done = std::make_shared<std::promise<void>>();
  std::thread([pool = std::move(pool_), done]() mutable {
    pool.reset();  // once all is written
    done->set_value();
  }).detach();
  static_cast<void>(done->get_future().wait_for(for_last_lines));
}

sigset_t block_stop_signals() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  return stop;
}

void wait_for_stop(const sigset_t& signals, const std::function<void()>& reload, const std::function<bool()>& alive) {
  // systemd's watchdog wants to hear from the process within this time: say so twice in it.
  const char* const watchdog = std::getenv("WATCHDOG_USEC");
  const auto within = watchdog == nullptr ? std::nullopt : parse_number<std::uint64_t>(watchdog);
  const std::uint64_t pause = std::max<std::uint64_t>(within.value_or(0) / 2, 1000);  // microseconds
  while (true) {
    const timespec time{static_cast<time_t>(pause / 1'000'000), static_cast<long>(pause % 1'000'000) * 1000};
    const int signal = within ? sigtimedwait(&signals, nullptr, &time) : sigwaitinfo(&signals, nullptr);
    if (signal == SIGHUP) reload();
    if (signal < 0 && errno == EAGAIN && alive()) tell_service_manager("WATCHDOG=1");
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

std::uint32_t threads_or_default(std::uint32_t threads, std::uint32_t lanes) {
  const std::uint32_t most = lanes == 0 ? 8 : std::min(lanes, 8U);
  return threads != 0 ? threads : std::clamp(static_cast<std::uint32_t>(runtime::allowed_cpus().size()), 1U, most);
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
