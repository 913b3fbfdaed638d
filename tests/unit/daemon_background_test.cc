// The thread beside a bump's: what it is handed has run before it ends, and it looks around in between.
#include "daemon/background.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <vector>

namespace netsum::daemon {
namespace {

TEST(Background, RunsCommandsInOrderAndCallsAfterThem) {
  std::vector<int> ran;  // the thread's
  {
    Background background(
        std::chrono::hours(1), [&] { ran.push_back(0); }, [] {});
    background.call([&] { ran.push_back(1); });
    background.post([&] { ran.push_back(2); });
    background.post([&] { ran.push_back(3); });
  }
  EXPECT_EQ(0, ran.back());
  std::erase(ran, 0);
  EXPECT_EQ((std::vector{1, 2, 3}), ran);
}

TEST(Background, TicksOnItsOwn) {
  std::promise<void> third;
  int ticks = 0;  // the thread's
  const Background background(
      std::chrono::milliseconds(1), [] {},
      [&] {
        if (++ticks == 3) third.set_value();
      });
  EXPECT_EQ(std::future_status::ready, third.get_future().wait_for(std::chrono::seconds(60)));
}

}  // namespace
}  // namespace netsum::daemon
