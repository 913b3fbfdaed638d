// Threads for users' callbacks at the end of operations. A callback may wait for another one, or for an operation that is
// yet to end: so as many run at once as must, and few otherwise.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace netsum::torch_backend {

class CallbackThreads {
 public:
  // Threads end after `idle` without a task, but for one.
  explicit CallbackThreads(std::chrono::milliseconds idle = std::chrono::seconds(1));
  // Waits until all posted tasks have run, except a task that is running on the calling thread.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // Runs the task on another thread, in its turn. Thread-safe.
  void post(std::function<void()> task);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // each thread keeps it alive
};

}  // namespace netsum::torch_backend
