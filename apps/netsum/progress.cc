#include "progress.h"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace netsum::app {

Progress::Progress(std::uint64_t total) : total_(total), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

void Progress::show(std::uint64_t done) const {
  if (!terminal_ || total_ == 0) return;
  constexpr std::uint64_t width = 40;
  const auto filled = static_cast<std::size_t>(width * done / total_);
  const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
  std::fprintf(stderr, "\r[%s] %llu/%llu", bar.c_str(), static_cast<unsigned long long>(done),
               static_cast<unsigned long long>(total_));
}

}  // namespace netsum::app
