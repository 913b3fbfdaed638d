#include "callback_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace netsum::torch_backend {

struct CallbackThreads::State {
  std::mutex mutex;  // guards all members below
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  std::vector<std::thread> threads;
  std::size_t idle = 0;
  bool stopping = false;

  void start(const std::shared_ptr<State>& self) {
    threads.emplace_back([self] { self->run(); });
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      ++idle;
      changed.wait(lock, [this] { return stopping || !tasks.empty(); });
      --idle;
      if (tasks.empty()) return;
      run_first(lock);
    }
  }

  void run_first(std::unique_lock<std::mutex>& lock) {
    auto task = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
};

CallbackThreads::CallbackThreads() : state_(std::make_shared<State>()) {
  const std::lock_guard lock(state_->mutex);
  state_->start(state_);
}

CallbackThreads::~CallbackThreads() {
  std::vector<std::thread> threads;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    threads.swap(state_->threads);
    while (!state_->tasks.empty()) state_->run_first(lock);
  }
  state_->changed.notify_all();
  for (std::thread& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();  // a callback destroys its own group
    } else {
      thread.join();
    }
  }
}

void CallbackThreads::post(std::function<void()> task) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
    if (state_->tasks.size() > state_->idle) {
      try {
        state_->start(state_);
      } catch (const std::system_error&) {
        // The system has no more threads: the task waits for an existing one.
      }
    }
  }
  state_->changed.notify_one();
}

}  // namespace netsum::torch_backend
