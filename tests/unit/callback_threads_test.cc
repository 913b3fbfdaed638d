// Threads for callbacks: few, unless callbacks wait for each other; none is left, and none is forgotten.
#include "callback_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

namespace netsum::torch_backend {
namespace {

using namespace std::chrono_literals;

std::ptrdiff_t threads_now() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

TEST(CallbackThreads, AreFewForManyTasks) {
  std::atomic<int> ran = 0;
  std::ptrdiff_t most = 0;
  {
    CallbackThreads threads;
    for (int i = 0; i < 2000; ++i) {
      threads.post([&ran] { ++ran; });
      most = std::max(most, threads_now());
    }
  }
  EXPECT_EQ(2000, ran) << "the destructor waits for all";
  EXPECT_LT(most, 100);
}

TEST(CallbackThreads, AreAsManyAsTasksThatWaitForLaterOnes) {
  constexpr std::size_t tasks = 20;
  std::vector<std::promise<void>> promises(tasks + 1);
  CallbackThreads threads(1ms);
  const std::ptrdiff_t before = threads_now();
  for (std::size_t i = 0; i < tasks; ++i) {
    threads.post([&promises, i] {
      promises[i + 1].get_future().wait();
      promises[i].set_value();
    });
  }
  threads.post([&promises] { promises.back().set_value(); });
  promises.front().get_future().wait();
  while (threads_now() > before) std::this_thread::yield();  // all that were needed once end
}

TEST(CallbackThreads, MayBeDestroyedByATask) {
  std::promise<void> destroyed;
  auto threads = std::make_shared<CallbackThreads>();
  threads->post([&destroyed, own = threads]() mutable {
    own.reset();
    destroyed.set_value();
  });
  threads.reset();
  destroyed.get_future().wait();
}

}  // namespace
}  // namespace netsum::torch_backend
