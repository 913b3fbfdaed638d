#include "runtime/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ctime>

namespace netsum::runtime {

void wait_on(const std::atomic<std::uint32_t>& word, std::uint32_t value, Duration patience) {
  if (patience <= Duration::zero()) return;
  const auto seconds = std::chrono::floor<std::chrono::seconds>(patience);
  const timespec time{seconds.count(), static_cast<long>((patience - seconds).count())};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool can_wait_on_any() {
  return ::syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) < 0 && errno == EINVAL;  // of no word
}

void wait_on_any(std::span<const Awaited> words, Duration patience) {
  if (patience <= Duration::zero()) return;
  std::array<futex_waitv, FUTEX_WAITV_MAX> waited{};
  const std::size_t count = std::min(words.size(), waited.size());
  for (std::size_t i = 0; i < count; ++i) {
    waited[i].val = words[i].seen;
    waited[i].uaddr = reinterpret_cast<std::uintptr_t>(words[i].word);
    waited[i].flags = FUTEX_32;
  }
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  const auto at = std::chrono::seconds(until.tv_sec) + std::chrono::nanoseconds(until.tv_nsec) + patience;
  const auto seconds = std::chrono::floor<std::chrono::seconds>(at);
  until = {seconds.count(), static_cast<long>((at - seconds).count())};
  ::syscall(SYS_futex_waitv, waited.data(), count, 0, &until, CLOCK_MONOTONIC);
}

}  // namespace netsum::runtime
