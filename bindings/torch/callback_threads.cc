#include "callback_threads.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace netsum::torch_backend {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t usual_workers = 4;
constexpr milliseconds standstill{10};  // for so long no worker takes a task that waits: all wait for others

}  // namespace

// Workers, and one thread that looks on.
struct CallbackThreads::State : std::enable_shared_from_this<State> {
  explicit State(milliseconds i) : idle_patience(i) {}

  const milliseconds idle_patience;
  std::mutex mutex;  // guards all members below
  std::condition_variable posted, watched;
  std::deque<std::function<void()>> tasks;
  std::vector<std::thread> threads;
  std::size_t workers = 0, idle = 0;
  std::uint64_t begun = 0;
  bool stopping = false;

  void start_worker() {
    try {
      threads.emplace_back([self = shared_from_this()] { self->work(); });
      ++workers;
    } catch (const std::system_error&) {
      // The system has no more threads: the task waits for an existing one, or for the next look.
    }
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      ++idle;
      posted.wait_for(lock, idle_patience, [this] { return stopping || !tasks.empty(); });
      --idle;
      if (tasks.empty()) break;
      run_first(lock);
    }
    --workers;
    const auto own = std::find_if(threads.begin(), threads.end(),
                                  [](const std::thread& each) { return each.get_id() == std::this_thread::get_id(); });
    if (own == threads.end()) return;  // the destructor joins it
    own->detach();
    threads.erase(own);
  }

  void watch() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      watched.wait(lock, [this] { return stopping || !tasks.empty(); });
      const std::uint64_t before = begun;
      watched.wait_for(lock, standstill, [this] { return stopping; });
      if (!stopping && !tasks.empty() && begun == before) start_worker();
    }
  }

  void run_first(std::unique_lock<std::mutex>& lock) {
    auto task = std::move(tasks.front());
    tasks.pop_front();
    ++begun;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
};

CallbackThreads::CallbackThreads(milliseconds idle) : state_(std::make_shared<State>(idle)) {
  const std::lock_guard lock(state_->mutex);
  state_->threads.emplace_back([state = state_] { state->watch(); });
}

CallbackThreads::~CallbackThreads() {
  std::vector<std::thread> threads;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    threads.swap(state_->threads);
    while (!state_->tasks.empty()) state_->run_first(lock);
  }
  state_->posted.notify_all();
  state_->watched.notify_all();
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
    if (state_->tasks.size() > state_->idle && state_->workers < usual_workers) state_->start_worker();
  }
  state_->posted.notify_one();
  state_->watched.notify_one();
}

}  // namespace netsum::torch_backend
