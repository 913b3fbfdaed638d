// Threads for what users do when an operation ends: as many as there are callbacks at once, as each may wait for an
// operation that is yet to end.
#pragma once

#include <functional>
#include <memory>

namespace netsum::torch_backend {

class CallbackThreads {
 public:
  CallbackThreads();
  // What was posted has run on return, but for a task that is under way on this very thread.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // Runs it on a thread that does nothing else: an idle one, or else a new one. From any thread.
  void post(std::function<void()> task);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // outlived by no thread of its own
};

}  // namespace netsum::torch_backend
