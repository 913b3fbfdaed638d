// The congestion window, answer by answer.
#include "protocol/atp/congestion.h"

#include <gtest/gtest.h>

namespace netsum::atp {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t small = 300;  // bytes: five packets an MTU, 200 at first
constexpr std::size_t mtu = 1500;   // 40 at first

TEST(AtpCongestion, BeginsWithSixtyKilobytes) {
  EXPECT_EQ(200U, CongestionWindow(true, 1000, small).packets());
  EXPECT_EQ(40U, CongestionWindow(true, 1000, 1500).packets());
  EXPECT_EQ(2U, CongestionWindow(true, 1000, 65340).packets());  // the least
  EXPECT_EQ(100U, CongestionWindow(true, 100, small).packets());
  EXPECT_EQ(1U, CongestionWindow(true, 1, 65340).packets());  // never more than the job's
}

TEST(AtpCongestion, DisabledItIsTheJobsWindowForEver) {
  CongestionWindow window(false, 1000, small);
  EXPECT_EQ(1000U, window.packets());
  window.on_parameter(0, 10, true, true);
  window.on_loss(20, 30);
  EXPECT_EQ(1000U, window.packets());
  EXPECT_EQ(0U, window.reductions());
}

TEST(AtpCongestion, GrowsByAnMtuForEachAnswerAndNotBeyondTheJobs) {
  CongestionWindow window(true, 212, small);
  window.on_parameter(0, 200, false, true);
  EXPECT_EQ(205U, window.packets());
  window.on_parameter(1, 200, false, true);
  EXPECT_EQ(210U, window.packets());
  window.on_parameter(2, 200, false, true);
  EXPECT_EQ(212U, window.packets());
  CongestionWindow large(true, 100, 4096);  // a packet longer than an MTU is one
  large.on_parameter(0, 10, false, true);
  EXPECT_EQ(15U, large.packets());
}

TEST(AtpCongestion, AMarkHalvesOnceForEachWindow) {
  CongestionWindow window(true, 1000, small);
  window.on_parameter(0, 200, true, true);
  EXPECT_EQ(100U, window.packets());
  for (std::uint64_t sequence = 1; sequence < 200; ++sequence) window.on_parameter(sequence, 200 + sequence, true, true);
  EXPECT_EQ(100U, window.packets());
  EXPECT_EQ(1U, window.reductions());
  window.on_parameter(200, 400, true, true);  // sent after the window was halved
  EXPECT_EQ(50U, window.packets());
  EXPECT_EQ(2U, window.reductions());
}

// Where the newest round trips are no longer than twice the shortest, no queue was full.
TEST(AtpCongestion, ALossWithoutAQueueCostsHalfAPacket) {
  for (const Duration newest : {200us, 201us}) {
    CongestionWindow window(true, 64, mtu);
    window.on_loss(0, 40);  // ends slow start
    EXPECT_EQ(20U, window.packets());
    window.on_round_trip(40, 60, 100us);
    for (std::uint64_t sequence = 41; sequence < 49; ++sequence) window.on_round_trip(sequence, 60, newest);
    for (std::uint64_t sequence = 0; sequence < 40; ++sequence)
      window.on_loss(sequence, 70);  // of the window that was halved
    for (std::uint64_t sequence = 50; sequence < 54; ++sequence) window.on_loss(sequence, 70);
    EXPECT_EQ(newest == 200us ? 18U : 14U, window.packets());
  }
}

TEST(AtpCongestion, ByThePapersRulesAllHalvesAndGrowthIsOneMtuForEachWindow) {
  CongestionWindow window(true, 1000, small, Rules::paper);
  window.on_parameter(0, 200, true, true);
  EXPECT_EQ(100U, window.packets());
  for (std::uint64_t sequence = 200; sequence < 300; ++sequence) window.on_parameter(sequence, 400, false, true);
  EXPECT_NEAR(100 + window.step(), window.packets(), 1);
  window.on_loss(400, 500);
  EXPECT_NEAR((100 + window.step()) / 2, window.packets(), 1);
}

TEST(AtpCongestion, ALossHalvesBeforeTheThresholdAndTakesLessBeyond) {
  CongestionWindow window(true, 1000, small);
  window.on_loss(5, 200);
  EXPECT_EQ(100U, window.packets());
  window.on_parameter(199, 300, true, true);  // of the same window
  EXPECT_EQ(100U, window.packets());
  window.on_loss(200, 300);
  EXPECT_EQ(70U, window.packets());
  window.on_parameter(300, 400, true, true);
  EXPECT_EQ(35U, window.packets());
}

TEST(AtpCongestion, GrowsOnlyWhereChunksWaitForIt) {
  CongestionWindow window(true, 1000, small);
  for (std::uint64_t sequence = 0; sequence < 50; ++sequence) window.on_parameter(sequence, 200, false, false);
  EXPECT_EQ(200U, window.packets());
  window.on_parameter(50, 200, true, false);  // a mark counts always
  EXPECT_EQ(100U, window.packets());
}

TEST(AtpCongestion, FromTheThresholdOnItGrowsByOneForEachWindow) {
  CongestionWindow window(true, 1000, 1500);
  window.on_loss(0, 40);
  EXPECT_EQ(20U, window.packets());
  std::uint64_t sequence = 40;
  for (int i = 0; i < 19; ++i) window.on_parameter(sequence++, 100, false, true);
  EXPECT_EQ(20U, window.packets());
  for (int i = 0; i < 2; ++i) window.on_parameter(sequence++, 100, false, true);
  EXPECT_EQ(21U, window.packets());
}

// As many packets as the window has, none of them marked.
void pass_window(CongestionWindow& window, std::uint64_t& sequence, std::uint32_t lanes = 1) {
  for (std::uint32_t left = window.packets(); left > 0; --left) window.on_parameter(sequence++, 1000, false, true, lanes);
}

TEST(AtpCongestion, AfterAMarkItComesBackSlowlyAtFirstAndFastInTheEnd) {
  CongestionWindow window(true, 1000, mtu);
  window.on_parameter(0, 40, true, true);
  EXPECT_EQ(20U, window.packets());
  std::uint64_t sequence = 40;
  for (int i = 0; i < 10; ++i) pass_window(window, sequence);
  EXPECT_EQ(20U, window.packets());
  for (int i = 0; i < 10; ++i) pass_window(window, sequence);
  EXPECT_EQ(25U, window.packets());
  for (int i = 0; i < 10; ++i) pass_window(window, sequence);
  EXPECT_EQ(38U, window.packets());  // thirty rounds, of windows rounded down
  pass_window(window, sequence);
  EXPECT_EQ(40U, window.packets());
  for (int i = 0; i < 200; ++i) pass_window(window, sequence);
  EXPECT_EQ(1000U, window.packets());
}

TEST(AtpCongestion, AfterALossItGrowsByOneForEachWindowWhateverMarkedItBefore) {
  CongestionWindow window(true, 1000, mtu);
  window.on_parameter(0, 40, true, true);
  window.on_loss(40, 41);
  EXPECT_EQ(14U, window.packets());
  std::uint64_t sequence = 41;
  for (int i = 0; i < 5; ++i) pass_window(window, sequence);
  EXPECT_EQ(18U, window.packets());
}

TEST(AtpCongestion, AfterAMarkLanesGrowAsOne) {
  CongestionWindow one(true, 1000, mtu), of_four(true, 1000, mtu);
  std::uint64_t sequence = 40, other = 40;
  one.on_parameter(0, 40, true, true);
  of_four.on_parameter(0, 40, true, true, 4);
  for (int i = 0; i < 24; ++i) pass_window(one, sequence);
  for (int i = 0; i < 8 * 24; ++i) pass_window(of_four, other, 4);  // the square root of 4 times 4
  EXPECT_EQ(29U, one.packets());
  EXPECT_EQ(29U, of_four.packets());
}

// A round of ten packets with this round trip.
void pass_round(CongestionWindow& window, std::uint64_t& sequence, Duration round_trip) {
  const std::uint64_t end = sequence + 10;
  for (; sequence < end; ++sequence) {
    window.on_round_trip(sequence, end, round_trip);
    window.on_parameter(sequence, end, false, true);
  }
}

TEST(AtpCongestion, SlowStartEndsWhereRoundTripsGrow) {
  CongestionWindow window(true, 1000, mtu);
  std::uint64_t sequence = 0;
  pass_round(window, sequence, 2ms);
  pass_round(window, sequence, 2ms + 999us);
  EXPECT_EQ(60U, window.packets());
  pass_round(window, sequence, 4ms);
  EXPECT_EQ(67U, window.packets());  // the eighth that is as long tells
  pass_round(window, sequence, 40ms);
  EXPECT_EQ(67U, window.packets());
  window.on_loss(sequence, sequence + 1);  // as beyond the threshold
  EXPECT_EQ(47U, window.packets());
}

TEST(AtpCongestion, LongRoundTripsGrowByAnEighth) {
  CongestionWindow window(true, 1000, mtu);
  std::uint64_t sequence = 0;
  pass_round(window, sequence, 80ms);
  pass_round(window, sequence, 89ms);
  EXPECT_EQ(60U, window.packets());
  pass_round(window, sequence, 101ms);
  EXPECT_EQ(67U, window.packets());
}

TEST(AtpCongestion, ALateRankIsNoQueue) {
  CongestionWindow window(true, 1000, mtu);
  std::uint64_t sequence = 0;
  pass_round(window, sequence, 2ms);
  pass_round(window, sequence, 30ms);
  EXPECT_EQ(57U, window.packets());
  pass_round(window, sequence, 2ms);  // it is back
  pass_round(window, sequence, 2ms);
  EXPECT_LT(67U, window.packets());
}

// One packet on its way is not delayed by those before it, and one of many may be by chance.
TEST(AtpCongestion, FewRoundTripsSayNothing) {
  CongestionWindow window(true, 1000, mtu);
  window.on_round_trip(0, 1, 2ms);
  for (std::uint64_t sequence = 1; sequence < 8; ++sequence) window.on_round_trip(sequence, 8, 20ms);
  window.on_parameter(7, 8, false, true);
  EXPECT_EQ(41U, window.packets());
}

TEST(AtpCongestion, NeverFallsBelowTwoNorBelowWhatTheJobHas) {
  CongestionWindow window(true, 1000, small), one(true, 1, small);
  for (std::uint64_t i = 0; i < 20; ++i) {
    window.on_loss(i, i + 1);
    one.on_loss(i, i + 1);
  }
  EXPECT_EQ(2U, window.packets());
  EXPECT_EQ(1U, one.packets());
}

}  // namespace
}  // namespace netsum::atp
