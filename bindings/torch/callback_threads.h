// Threads for users' callbacks at the end of operations: one per concurrent callback, as each may wait for an operation
// that is yet to end.
#pragma once

#include <functional>
#include <memory>

namespace netsum::torch_backend {

class CallbackThreads {
 public:
  CallbackThreads();
  // Waits until all posted tasks have run, except a task that is running on the calling thread.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // Runs the task on an idle thread, or else a new one. Thread-safe.
  void post(std::function<void()> task);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // each thread keeps it alive
};

}  // namespace netsum::torch_backend
