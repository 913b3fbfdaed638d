#include "stream/retransmission_timer.h"

#include <gtest/gtest.h>

namespace netsum::stream {
namespace {

using namespace std::chrono_literals;

RetransmissionTimer timer() {
  return {20ms, 1ms, 250ms};
}

TEST(RetransmissionTimer, StartsWithTheInitialTimeout) {
  EXPECT_EQ(timer().timeout(), 20ms);
}

// RFC 6298, 2.2: R + 4 * R/2.
TEST(RetransmissionTimer, FirstSampleSetsMeanAndVariation) {
  auto t = timer();
  t.sample(4ms);
  EXPECT_EQ(t.timeout(), 12ms);
}

// RFC 6298, 2.3: the variation moves by a quarter of the error's change, the mean by an eighth.
TEST(RetransmissionTimer, LaterSamplesAreSmoothed) {
  auto t = timer();
  t.sample(8ms);
  t.sample(16ms);
  EXPECT_EQ(t.timeout(), 9ms + 4 * 5ms);
}

// RFC 6298, 2.3: not less than the round trip and what a clock (here: a scheduler) may be off.
TEST(RetransmissionTimer, SteadyRoundTripsLeaveRoomForALateOne) {
  auto t = timer();
  for (int i = 0; i < 200; ++i) t.sample(10ms);
  EXPECT_EQ(t.timeout(), 11ms);
}

TEST(RetransmissionTimer, StaysWithinItsLimits) {
  auto fast = timer(), slow = timer();
  fast.sample(1us);
  slow.sample(10s);
  EXPECT_EQ(fast.timeout(), 1ms + 1us);
  EXPECT_EQ(slow.timeout(), 250ms);
}

TEST(RetransmissionTimer, DoublesWithEachTransmission) {
  const auto t = timer();
  EXPECT_EQ(t.timeout(1), 20ms);
  EXPECT_EQ(t.timeout(2), 40ms);
  EXPECT_EQ(t.timeout(4), 160ms);
  EXPECT_EQ(t.timeout(5), 250ms);
  EXPECT_EQ(t.timeout(1'000'000), 250ms);
}

// After a repeat, an answer says something only if it is too early to be the repeat's.
TEST(RetransmissionTimer, LearnsFromRepeatsInVain) {
  RetransmissionTimer t(20ms, 1ms, 250ms);
  t.answered(30ms, 5ms);  // of which of them?
  EXPECT_EQ(t.timeout(), 20ms);
  t.answered(4ms, 4ms);
  const Duration before = t.timeout();
  t.answered(20ms, 5ms);
  EXPECT_EQ(t.timeout(), before);
  t.answered(20ms, 3ms);  // no round trip was ever that short
  EXPECT_GT(t.timeout(), before);
}

// Round trips have become longer than the time-out: each packet is sent again before its answer, so no answer is certain.
TEST(RetransmissionTimer, LearnsOfLongerRoundTripsAlthoughEachPacketIsSentAgain) {
  RetransmissionTimer t(20ms, 1ms, 250ms);
  t.sample(1ms);
  constexpr Duration round_trip = 20ms;
  Time now{1s};
  int repeated = 0;
  for (; t.timeout() < round_trip && repeated < 10; ++repeated) {
    const Duration patience = t.timeout();
    t.expired(now, now + patience);
    t.answered(round_trip, round_trip - patience);
    now += round_trip;
  }
  EXPECT_EQ(repeated, 3);  // 3, 6, 12, 24 ms
  t.answered(round_trip, round_trip);
  EXPECT_GT(t.timeout(), round_trip);
  EXPECT_LT(t.timeout(), 2 * round_trip);
}

TEST(RetransmissionTimer, APacketThatIsLostAmongOthersIsNoReasonForMorePatience) {
  RetransmissionTimer t(20ms, 1ms, 250ms);
  Time now{1s};
  t.answered(4ms, 4ms);
  for (int lost = 0; lost < 10; ++lost) {
    const Duration before = t.timeout();
    t.expired(now, now + before);
    now += before;
    EXPECT_EQ(t.timeout(), before);
    t.answered(4ms, 4ms);
  }
}

// A window that expires together is one step, and an answer to a packet sent once ends it.
TEST(RetransmissionTimer, AWindowThatExpiresTogetherDoublesItOnce) {
  RetransmissionTimer t(20ms, 1ms, 250ms);
  const Time start{1s}, later = start + 20ms;
  for (int packet = 0; packet < 64; ++packet) t.expired(start, later);
  EXPECT_EQ(t.timeout(), 40ms);
  EXPECT_EQ(t.timeout(2), 40ms);
  EXPECT_EQ(t.timeout(3), 80ms);
  t.expired(later, later + 40ms);
  EXPECT_EQ(t.timeout(), 80ms);
  t.answered(30ms, 5ms);
  EXPECT_EQ(t.timeout(), 80ms);
  t.answered(4ms, 4ms);
  EXPECT_EQ(t.timeout(), 12ms);
}

// The soonest of each group: the others waited for what was lost elsewhere.
TEST(RetransmissionTimer, OfAGroupTheSoonestCounts) {
  RetransmissionTimer t(20ms, 1ms, 250ms, 4);
  t.answered(4ms, 4ms);  // the first one, at once
  EXPECT_EQ(t.smoothed_round_trip(), 4ms);
  for (int i = 0; i < 400; ++i) {
    const Duration each = i % 4 == 2 ? 4ms : 100ms;
    t.answered(each, each);
  }
  EXPECT_EQ(t.smoothed_round_trip(), 4ms);
}

TEST(RetransmissionTimer, WhatLaterAnswersOvertookIsNoRoundTrip) {
  auto t = timer();
  t.answered(100us, 100us, true, true);  // there is nothing to compare it with
  const Duration before = t.timeout();
  t.answered(50ms, 50ms, true, true);
  EXPECT_EQ(t.smoothed_round_trip(), 100us);
  EXPECT_EQ(t.timeout(), before);
}

// A rank that begins an operation late may have waited for a time-out: time-outs may not grow with that.
TEST(RetransmissionTimer, WhatWaitedForALateRankIsNoRoundTrip) {
  auto t = timer();
  t.answered(15ms, 15ms, false);  // there is nothing to compare it with
  EXPECT_EQ(t.smoothed_round_trip(), 15ms);
  for (int i = 0; i < 100; ++i) t.answered(20us, 20us);
  const Duration before = t.timeout();
  for (int i = 0; i < 100; ++i) t.answered(100ms, 100ms, false);
  EXPECT_EQ(t.timeout(), before);
  t.answered(3ms, 3ms, false);  // a host that is scheduled late
  EXPECT_GT(t.timeout(), before);
  t.answered(100ms, 100ms, true);
  EXPECT_GT(t.timeout(), 100ms);
}

}  // namespace
}  // namespace netsum::stream
