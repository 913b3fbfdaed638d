#include "runtime/engine.h"

#include <utility>

namespace netsum::runtime {

bool PendingOperation::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void PendingOperation::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done_; });
}

void PendingOperation::end(std::shared_ptr<const Error> error) {
  const std::lock_guard lock(mutex_);
  done_ = true;
  error_ = std::move(error);
  ended_.notify_all();
}

std::shared_ptr<const Error> PendingOperation::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace netsum::runtime
