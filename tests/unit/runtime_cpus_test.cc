// CPUs of threads: in the order that was asked for, or each its own on this host.
#include "runtime/cpus.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <future>
#include <latch>
#include <set>
#include <thread>
#include <vector>

#include "runtime/thread.h"

namespace netsum::runtime {
namespace {

// The CPUs of a new thread that was pinned; it ends once `end` is done.
std::future<std::vector<std::uint32_t>> cpus_of(int pin, std::latch& end, std::vector<std::thread>& threads) {
  std::promise<std::vector<std::uint32_t>> cpus;
  auto future = cpus.get_future();
  threads.emplace_back([pin, &end, cpus = std::move(cpus)]() mutable {
    pin_thread(pin);
    cpus.set_value(allowed_cpus());
    end.wait();
  });
  return future;
}

TEST(Cpus, AreThoseInOrderAndAgainFromTheFirst) {
  const ThreadOptions options{.cpus = {7, 3}, .own_cpus = true};
  EXPECT_EQ(7, options.cpu(0));
  EXPECT_EQ(3, options.cpu(1));
  EXPECT_EQ(7, options.cpu(2));
  EXPECT_EQ(own_cpu, (ThreadOptions{.own_cpus = true}.cpu(5)));
  EXPECT_EQ(own_cpu_near(3), (ThreadOptions{.own_cpus = true, .node = 3}.cpu(5)));
  EXPECT_LT(own_cpu_near(0), own_cpu);
  EXPECT_EQ(any_cpu, (ThreadOptions{.node = 3}.cpu(5)));
}

TEST(Cpus, AThreadIsPinnedUntilItEnds) {
  const std::vector<std::uint32_t> allowed = allowed_cpus();
  std::latch end(1);
  std::vector<std::thread> threads;
  EXPECT_EQ(std::vector{allowed.back()}, cpus_of(static_cast<int>(allowed.back()), end, threads).get());
  EXPECT_EQ(allowed, cpus_of(any_cpu, end, threads).get());
  end.count_down();
  for (std::thread& thread : threads) thread.join();
}

// Another process of this host may have taken some: so rounds go on until each CPU was had once.
TEST(Cpus, OfTheirOwnAreEachOneThreadsAndFreeAfterIt) {
  const std::vector<std::uint32_t> allowed = allowed_cpus();
  std::set<std::uint32_t> had;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (had.size() < allowed.size() && std::chrono::steady_clock::now() < until) {
    std::latch end(1);
    std::vector<std::thread> threads;
    std::set<std::uint32_t> taken;
    for (std::size_t i = 0; i <= allowed.size(); ++i) {  // one more than there are CPUs
      const std::vector<std::uint32_t> cpus = cpus_of(i % 2 == 0 ? own_cpu : own_cpu_near(0), end, threads).get();
      if (cpus.size() == allowed.size() && allowed.size() > 1) continue;  // none was free
      EXPECT_EQ(1U, cpus.size());
      EXPECT_TRUE(taken.insert(cpus.front()).second || allowed.size() == 1) << cpus.front();
    }
    had.merge(taken);
    end.count_down();
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(allowed.size(), had.size());
}

}  // namespace
}  // namespace netsum::runtime
