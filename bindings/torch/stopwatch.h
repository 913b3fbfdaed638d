// Seconds during which at least one all-reduce was pending, however many overlapped.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace netsum::torch_backend {

class Stopwatch {
 public:
  using Clock = std::chrono::steady_clock;

  void begin() {
    const std::lock_guard lock(mutex_);
    if (running_++ == 0) since_ = Clock::now();
  }

  void end() {
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) total_ += Clock::now() - since_;
  }

  [[nodiscard]] double seconds() const {
    const std::lock_guard lock(mutex_);
    const auto under_way = running_ > 0 ? Clock::now() - since_ : Clock::duration::zero();
    return std::chrono::duration<double>(total_ + under_way).count();
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t running_ = 0;
  Clock::time_point since_;
  Clock::duration total_{};
};

}  // namespace netsum::torch_backend
