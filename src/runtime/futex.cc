#include "runtime/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

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

}  // namespace netsum::runtime
