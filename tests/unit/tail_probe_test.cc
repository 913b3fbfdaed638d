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
  TailProbe probe;
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
  TailProbe probe;
  probe.on_sent(start);
  probe.listen(timer);
  probe.on_answer(start + 150us);
  EXPECT_FALSE(probe.due(timer, start + 200us));
  probe.listen(timer);
  EXPECT_EQ(start + 350us, probe.next());
}

TEST(TailProbe, WaitsAsLongAsRoundTripsVary) {
  RetransmissionTimer timer(20ms, 1ms, 250ms);
  timer.sample(100us);  // varies by half of that
  TailProbe probe;
  probe.on_sent(start);
  probe.listen(timer);
  EXPECT_EQ(start + 300us, probe.next());
}

TEST(TailProbe, KnowsNoWaitBeforeTheFirstRoundTrip) {
  const RetransmissionTimer timer(20ms, 1ms, 250ms);
  TailProbe probe;
  probe.on_sent(start);
  probe.listen(timer);
  EXPECT_EQ(never, probe.next());
  EXPECT_FALSE(probe.due(timer, start + 1h));
}

}  // namespace
}  // namespace netsum::stream
