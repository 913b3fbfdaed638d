// When the last packets of a stream are sent again.
#include "stream/tail_probe.h"

#include <gtest/gtest.h>

#include <chrono>

namespace netsum::stream {
namespace {

using namespace std::chrono_literals;

constexpr Time start = Time{} + 1h;

RetransmissionTimer steady() {
  RetransmissionTimer timer(20ms, 1ms, 250ms);
  for (int i = 0; i < 64; ++i) timer.sample(100us);
  return timer;
}

TEST(TailProbe, WaitsTwoRoundTripsAndThenTwiceAsLongEachTime) {
  const RetransmissionTimer timer = steady();
  TailProbe probe{1};
  probe.on_sent(start);
  probe.listen(timer);
  Time last = start;
  for (const Duration wait : {200us, 400us, 800us, 1600us}) {
    EXPECT_EQ(last + wait, probe.next());
    EXPECT_FALSE(probe.due(timer, probe.next() - 1ns));
    last = probe.next();
    EXPECT_TRUE(probe.due(timer, last));
    probe.listen(timer);
  }
  EXPECT_EQ(never, probe.next()) << "from then on there are time-outs alone";
  probe.on_answer(last);
  probe.listen(timer);
  EXPECT_EQ(last + 200us, probe.next());
}

TEST(TailProbe, WaitsAsLongAsThereAreAnswers) {
  const RetransmissionTimer timer = steady();
  TailProbe probe{1};
  probe.on_sent(start);
  probe.listen(timer);
  probe.on_answer(start + 150us);
  EXPECT_FALSE(probe.due(timer, start + 200us));
  probe.listen(timer);
  EXPECT_EQ(start + 350us, probe.next());
}

TEST(TailProbe, WaitsLongerWhereRoundTripsVaryByMore) {
  RetransmissionTimer timer(20ms, 1ms, 250ms);
  timer.sample(100us);
  timer.sample(1000us);  // smoothed 212.5 us, variation 262.5 us
  TailProbe probe{1};
  probe.on_sent(start);
  probe.listen(timer);
  EXPECT_EQ(start + 475us, probe.next());
  TailProbe patient{4};
  patient.on_sent(start);
  patient.listen(timer);
  EXPECT_EQ(start + 212'500ns + 4 * 262'500ns, patient.next());
}

TEST(TailProbe, ComesSoonerWhereRoundTripsHaveBecomeShorter) {
  RetransmissionTimer timer(20ms, 1ms, 250ms);
  timer.sample(1000us);
  TailProbe probe{1};
  probe.on_sent(start);
  probe.listen(timer);
  EXPECT_EQ(start + 2000us, probe.next());
  for (int i = 0; i < 64; ++i) timer.sample(100us);
  probe.on_answer(start + 100us);
  probe.listen(timer);
  EXPECT_LE(probe.next(), start + 350us);
}

TEST(TailProbe, KnowsNoWaitBeforeTheFirstRoundTrip) {
  const RetransmissionTimer timer(20ms, 1ms, 250ms);
  TailProbe probe{1};
  probe.on_sent(start);
  probe.listen(timer);
  EXPECT_EQ(never, probe.next());
  EXPECT_FALSE(probe.due(timer, start + 1h));
}

}  // namespace
}  // namespace netsum::stream
