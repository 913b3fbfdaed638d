#include "runtime/engine.h"

#include <utility>

namespace netsum::runtime {

void PendingOperation::wait() {
  std::unique_lock lock(mutex_);
  const auto ended = [this] { return done(); };
  if (!meanwhile) return ended_.wait(lock, ended);
  while (!ended_.wait_for(lock, meanwhile_every, ended)) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
}

bool PendingOperation::wait_until(Time time) {
  if (time == never) wait();
  std::unique_lock lock(mutex_);
  return ended_.wait_until(lock, std::chrono::steady_clock::time_point(time.time_since_epoch()), [this] { return done(); });
}

void PendingOperation::end(std::shared_ptr<const Error> error) {
  std::vector<std::function<void()>> next;
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
    ended_.notify_all();
    next.swap(then_);
  }
  for (const auto& what : next) what();
}

void PendingOperation::then(std::function<void()> what) {
  {
    const std::lock_guard lock(mutex_);
    if (!done()) return then_.push_back(std::move(what));
  }
  what();
}

std::shared_ptr<const Error> PendingOperation::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace netsum::runtime
