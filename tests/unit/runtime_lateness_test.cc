#include "runtime/lateness.h"

#include <gtest/gtest.h>

namespace netsum::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Time start{10s};

TEST(Lateness, NothingIsAllowedWhereNothingWasLate) {
  const Lateness lateness;
  EXPECT_EQ(start, lateness.over(start));
  EXPECT_EQ(never, lateness.over(never));
}

TEST(Lateness, TheMostIsAllowed) {
  Lateness lateness;
  lateness.sent(start, start + 3ms);
  lateness.sent(start + 4ms, start + 5ms);
  EXPECT_EQ(start + 23ms, lateness.over(start + 20ms));
  EXPECT_EQ(never, lateness.over(never));
}

TEST(Lateness, IsKeptForLongerThanAnyTimeOutAndThenForgotten) {
  Lateness lateness;
  lateness.sent(start, start + 3ms);
  Time now = start;
  for (; now < start + 250ms; now += 1ms) {
    EXPECT_EQ(now + 3ms, lateness.over(now));
    lateness.sent(now, now + 10us);
  }
  for (; now < start + 550ms; now += 1ms) lateness.sent(now, now + 10us);
  EXPECT_EQ(now + 10us, lateness.over(now));
}

TEST(Lateness, IsForgottenWhileNothingIsSent) {
  Lateness lateness;
  lateness.sent(start, start + 3ms);
  lateness.sent(start + 10s, start + 10s);
  EXPECT_EQ(start + 11s, lateness.over(start + 11s));
}

}  // namespace
}  // namespace netsum::runtime
