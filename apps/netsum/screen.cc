#include "screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>

namespace netsum::app {
namespace {

volatile std::sig_atomic_t signalled = 0;

}  // namespace

struct Screen::Impl {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  const bool keys = terminal && isatty(STDIN_FILENO) == 1;
  termios former{};
  struct sigaction former_interrupt {
  }, former_end{};
};

Screen::Screen() : impl_(std::make_unique<Impl>()) {
  signalled = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { signalled = 1; };  // no SA_RESTART: poll() ends
  sigaction(SIGINT, &action, &impl_->former_interrupt);
  sigaction(SIGTERM, &action, &impl_->former_end);
  if (impl_->keys && tcgetattr(STDIN_FILENO, &impl_->former) == 0) {
    termios raw = impl_->former;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  if (impl_->terminal) std::fputs("\033[?1049h\033[?25l", stdout);  // another screen, without a cursor
}

Screen::~Screen() {
  if (impl_->terminal) std::fputs("\033[?25h\033[?1049l", stdout);
  std::fflush(stdout);
  if (impl_->keys) tcsetattr(STDIN_FILENO, TCSANOW, &impl_->former);
  sigaction(SIGINT, &impl_->former_interrupt, nullptr);
  sigaction(SIGTERM, &impl_->former_end, nullptr);
}

bool Screen::terminal() const {
  return impl_->terminal;
}

std::size_t Screen::columns() const {
  winsize size{};
  if (impl_->terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0) return size.ws_col;
  return 160;
}

void Screen::show(const std::string& text) {
  if (!impl_->terminal) {
    std::fputs(text.c_str(), stdout);
  } else {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row != 0;
    std::string lines = "\033[H";
    std::size_t left = known ? size.ws_row : SIZE_MAX;
    for (std::size_t at = 0; at < text.size() && left != 0; --left) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      lines += text.substr(at, end - at) + "\033[K";
      if (left != 1) lines += "\n";
      at = end + 1;
    }
    std::fputs((lines + "\033[J").c_str(), stdout);
  }
  std::fflush(stdout);
}

bool Screen::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (signalled == 0 && std::ferror(stdout) == 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return true;
    pollfd key{impl_->keys ? STDIN_FILENO : -1, POLLIN, 0};
    if (poll(&key, 1, static_cast<int>(std::min<std::int64_t>(left, 1'000'000))) <= 0) continue;
    char typed = 0;
    if (read(STDIN_FILENO, &typed, 1) <= 0 || typed == 'q' || typed == 'Q') return false;
  }
  return false;
}

}  // namespace netsum::app
