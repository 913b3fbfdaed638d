#include <gtest/gtest.h>

#include "runtime/busy_poll.h"

namespace netsum::runtime {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Looks in vain until it would sleep; how many they were.
std::uint32_t looks_in_vain(BusyPoll& poll, Time& now) {
  std::uint32_t looks = 0;
  while (poll.look_again(now += microseconds(1))) ++looks;
  return looks;
}

TEST(BusyPoll, LooksAFewTimesThenSleeps) {
  BusyPoll poll(true);
  Time now{};
  EXPECT_GT(looks_in_vain(poll, now), 4U);
}

TEST(BusyPoll, NeverWhereItIsNotAllowed) {
  BusyPoll poll(false);
  EXPECT_FALSE(poll.look_again(Time{}));
}

// Where packets are further apart than a look takes, looking costs next to nothing in the long run.
TEST(BusyPoll, GivesUpWhereItIsInVain) {
  BusyPoll poll(true);
  Time now{};
  std::uint32_t looks = 0;
  constexpr std::uint32_t sleeps = 10'000;
  for (std::uint32_t i = 0; i < sleeps; ++i) {
    looks += looks_in_vain(poll, now);
    poll.found();  // after the sleep
  }
  EXPECT_LT(looks, sleeps / 4);
  EXPECT_GT(looks, 0U) << "it has to notice when that changes";
}

TEST(BusyPoll, GoesOnWhereItPays) {
  BusyPoll poll(true);
  Time now{};
  EXPECT_GT(looks_in_vain(poll, now), 0U);
  poll.found();
  EXPECT_FALSE(poll.look_again(now)) << "one sleep for one vain try";
  poll.found();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(poll.look_again(now += microseconds(1)));
    poll.found();
  }
}

// Threads that yield to each other make looks last until packets come: each look finds one at last, at a CPU's whole cost.
TEST(BusyPoll, GivesUpWhereALookFindsSomethingTooLate) {
  BusyPoll poll(true);
  Time now{};
  std::uint32_t looks = 0;
  constexpr std::uint32_t packets = 10'000;
  for (std::uint32_t i = 0; i < packets; ++i) {
    for (int look = 0; look < 12 && poll.look_again(now += microseconds(4)); ++look) ++looks;
    poll.found();
  }
  EXPECT_LT(looks, packets / 4);
  EXPECT_GT(looks, 0U) << "it has to notice when that changes";
}

// A yield after which somebody else computed for a whole time slice: that costs the next packet its latency.
TEST(BusyPoll, SleepsBesideWhoeverComputes) {
  BusyPoll poll(true);
  Time now{};
  ASSERT_TRUE(poll.look_again(now));
  EXPECT_FALSE(poll.look_again(now += milliseconds(3)));
  for (int i = 0; i < 100; ++i) {
    poll.found();
    ASSERT_FALSE(poll.look_again(now += microseconds(1)));
  }
}

// Nothing wakes the loop: it looks on while packets come, and then naps between looks, whatever was allowed.
TEST(BusyPoll, LooksOnWhereNothingWakes) {
  for (const bool allowed : {false, true}) {
    BusyPoll poll(allowed, false);
    Time now{};
    for (int packets = 0; packets < 10; ++packets) {
      for (int look = 0; look < 1000; ++look) {
        ASSERT_TRUE(poll.look_again(now += microseconds(1)));
        ASSERT_EQ(poll.yields(), look >= 200) << "what is on its way comes at once";
      }
      poll.found();
    }
    EXPECT_GE(looks_in_vain(poll, now), 1000U);
    EXPECT_FALSE(poll.look_again(now += milliseconds(1))) << "and stays asleep";
    EXPECT_LT(poll.until(never, now), now + milliseconds(1));
    EXPECT_EQ(poll.until(now + microseconds(1), now), now + microseconds(1)) << "there is something to do before";
    poll.found();
    EXPECT_TRUE(poll.look_again(now));
  }
  BusyPoll woken(true);
  EXPECT_EQ(woken.until(never, Time{}), never);
  EXPECT_TRUE(woken.look_again(Time{}));
  EXPECT_TRUE(woken.yields());
}

}  // namespace
}  // namespace netsum::runtime
