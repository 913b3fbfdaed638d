// Common parts of the event loops: the clock, a wake-up descriptor, and commands that run on a loop's thread.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "base/waiting.h"
#include "netsum/error.h"
#include "runtime/cpus.h"

namespace netsum::runtime {

[[nodiscard]] inline Time now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch());
}

// A caller's milliseconds may be more than nanoseconds can hold.
[[nodiscard]] inline Duration bounded(std::chrono::milliseconds patience) {
  return patience < std::chrono::floor<std::chrono::milliseconds>(Duration::max()) ? Duration(patience) : Duration::max();
}

// Until one of them has something, or the time comes. Those of which nothing can be heard are -1.
inline void wait_for(std::span<pollfd> descriptors, Time until) {
  if (until == never) {
    ppoll(descriptors.data(), descriptors.size(), nullptr, nullptr);
    return;
  }
  const auto left = std::max(until - now(), Duration::zero());
  const auto whole = std::chrono::floor<std::chrono::seconds>(left);
  const timespec timeout{static_cast<time_t>(whole.count()), static_cast<long>((left - whole).count())};
  ppoll(descriptors.data(), descriptors.size(), &timeout, nullptr);
}

class Wakeup {
 public:
  Wakeup() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw Error(ErrorCode::internal, "cannot create an eventfd: too many open files? (ulimit -n)");
  }
  ~Wakeup() { close(fd_); }
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  [[nodiscard]] int descriptor() const { return fd_; }
  void notify() const {
    const std::uint64_t one = 1;
    // Fails only when the counter is full, and then the loop is awake anyway.
    while (write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
  void drain() const {
    std::uint64_t value = 0;
    while (read(fd_, &value, sizeof value) < 0 && errno == EINTR) {
    }
  }

 private:
  int fd_;
};

// Closures for whoever serves an object: share nothing, send a message.
class Commands {
 public:
  // `notify` tells that there are some, on the poster's thread, without waiting.
  explicit Commands(std::function<void()> notify) : notify_(std::move(notify)) {}

  void post(std::function<void()> command) {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    waiting_.store(true, std::memory_order_release);
    notify_();
  }

  // Runs `command` where the object is served and waits for it. Rethrows its exceptions here; who serves goes on.
  void call(const std::function<void()>& command) {
    check_may_wait("a command on another thread");
    std::packaged_task<void()> task(command);
    auto finished = task.get_future();
    post([&task] { task(); });
    finished.get();
  }

  // `first` is done under the lock of post().
  void run_all(const std::function<void()>& first = {}) {
    {
      const std::lock_guard lock(mutex_);
      if (first) first();
      running_.swap(commands_);
      waiting_.store(false, std::memory_order_relaxed);
    }
    for (const auto& command : running_) command();
    running_.clear();
  }

  [[nodiscard]] bool waiting() const { return waiting_.load(std::memory_order_acquire); }

  // Another one serves from now on, and is told at once of what waits.
  void hand_over(std::function<void()> notify) {
    const std::lock_guard lock(mutex_);
    notify_ = std::move(notify);
    if (!commands_.empty()) notify_();
  }

 private:
  std::mutex mutex_;
  std::function<void()> notify_;
  std::atomic<bool> waiting_ = false;
  std::vector<std::function<void()>> commands_, running_;
};

// Commands for a loop that polls.
class Mailbox {
 public:
  void post(std::function<void()> command) { commands_.post(std::move(command)); }
  void call(const std::function<void()>& command) { commands_.call(command); }
  // The descriptor is readable exactly while commands wait: a loop may rely on either.
  void run_all() {
    commands_.run_all([this] { wakeup_.drain(); });
  }
  [[nodiscard]] bool waiting() const { return commands_.waiting(); }  // for a loop that does not poll
  [[nodiscard]] int descriptor() const { return wakeup_.descriptor(); }

 private:
  Wakeup wakeup_;
  Commands commands_{[this] { wakeup_.notify(); }};
};

struct ThreadOptions {
  std::vector<std::uint32_t> cpus{};  // thread i runs on the i-th of these, and again from the first
  bool own_cpus = false;              // without `cpus`: each thread has a CPU of its own, if one is free
  bool busy_poll = true;              // polls for a moment before sleeping (busy_poll.h)
  std::uint32_t set = 0;              // of ranks: which of the process's threads (process_wide.h)
  // Near which NUMA node pinned threads are: own CPUs are of it if one there is free, and `cpus` in an order that suits.
  std::optional<std::uint32_t> node{};

  [[nodiscard]] int cpu(std::size_t thread) const {
    return !cpus.empty() ? static_cast<int>(cpus[thread % cpus.size()]) : own_cpus ? own_cpu_near(node) : any_cpu;
  }
};

// Called first on each of the library's threads. A thread inherits its creator's floating-point environment, and a process
// that flushes subnormals to zero would compute other bits than its peers (docs/numerics.md). `cpu`: for pin_thread().
inline void enter_thread(const std::string& name, int cpu = any_cpu) {
  std::fesetenv(FE_DFL_ENV);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  pin_thread(cpu);
}

// For computations on a caller's thread: sets the default environment, and restores the caller's at the end.
class DefaultFloatingPoint {
 public:
#if defined(__SSE2__)  // floats use SSE there, and this is faster than the whole environment
  DefaultFloatingPoint() : before_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(0x1f80);
  }
  ~DefaultFloatingPoint() {
    __builtin_ia32_ldmxcsr(before_);
  }
#else
  DefaultFloatingPoint() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() {
    std::fesetenv(&before_);
  }
#endif
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
#if defined(__SSE2__)
  unsigned before_;
#else
  std::fenv_t before_{};
#endif
};

// Signals belong to the application's threads: blocked while the library creates threads, which inherit the mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace netsum::runtime
