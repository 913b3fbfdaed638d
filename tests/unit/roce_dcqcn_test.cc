// The rate of DCQCN's sender, notification by notification and stage by stage, and whatever comes at whatever time.
#include "protocol/roce/dcqcn.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/virtual_network.h"

namespace netsum::roce {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t mtu = 1500;

// A window of 80 MTUs, of which 20 are in flight: 0.3 GB/s in a round trip of 100 us.
constexpr Dcqcn::Path path{.round_trip = 100us, .least_round_trip = 50us, .in_flight = 20 * mtu, .window = 80 * mtu};
constexpr double sent = 0.3e9, round = 100e-6;

Time at(Duration since) {
  return Time(1s) + since;
}

TEST(Dcqcn, LimitsNothingBeforeTheFirstNotification) {
  Dcqcn rate(mtu);
  for (int packet = 0; packet < 1000; ++packet) {
    EXPECT_TRUE(rate.may_send(at(0s)));
    rate.on_sent(at(0s), mtu);
  }
  rate.advance(at(1s));
  EXPECT_FALSE(rate.limits());
}

TEST(Dcqcn, ANotificationTakesHalfOfAlphaOfWhatWasSent) {
  Dcqcn rate(mtu);
  ASSERT_TRUE(rate.on_notification(at(0s), path));
  EXPECT_TRUE(rate.limits());
  EXPECT_DOUBLE_EQ(sent, rate.target());
  EXPECT_DOUBLE_EQ(sent / 2, rate.rate());
  EXPECT_DOUBLE_EQ(1, rate.alpha()) << "(1 - g) 1 + g";
  EXPECT_FALSE(rate.on_notification(at(99us), path)) << "within a round trip";
  EXPECT_DOUBLE_EQ(sent / 2, rate.rate());
  ASSERT_TRUE(rate.on_notification(at(100us), path));
  EXPECT_DOUBLE_EQ(sent / 2, rate.target());
  EXPECT_DOUBLE_EQ(sent / 4, rate.rate());
  Dcqcn near(mtu);
  const Dcqcn::Path short_path{.round_trip = 10us, .least_round_trip = 10us, .in_flight = mtu, .window = 80 * mtu};
  ASSERT_TRUE(near.on_notification(at(0s), short_path));
  EXPECT_FALSE(near.on_notification(at(49us), short_path)) << "N";
  EXPECT_TRUE(near.on_notification(at(50us), short_path));
}

// The timer: 0.3 / 0.53 rounds for each of 20 MTUs, in five stages. R_AI: half an MTU for each of its rounds.
TEST(Dcqcn, RecoversByHalvesAndThenAdds) {
  Dcqcn rate(mtu);
  ASSERT_TRUE(rate.on_notification(at(0s), path));
  const double rounds = 20 * 0.3 / 0.53 / 5, step = 0.5 * rounds * mtu / round;
  const auto period = Duration(static_cast<std::int64_t>(100'000 * rounds));
  double current = sent / 2, target = sent, alpha = 1;
  for (int stage = 1; stage <= 12; ++stage) {
    rate.advance(at(stage * period - 1us));
    EXPECT_DOUBLE_EQ(current, rate.rate()) << "before stage " << stage;
    rate.advance(at(stage * period));
    if (stage >= 5) target += step;
    current = (target + current) / 2;
    alpha *= 15.0 / 16;
    EXPECT_DOUBLE_EQ(current, rate.rate()) << "stage " << stage;
    EXPECT_DOUBLE_EQ(target, rate.target());
    EXPECT_DOUBLE_EQ(alpha, rate.alpha());
  }
  ASSERT_TRUE(rate.on_notification(at(12 * period), {100us, 50us, 80 * mtu, 80 * mtu}));
  EXPECT_DOUBLE_EQ(current, rate.target()) << "R_T = R_C";
  EXPECT_DOUBLE_EQ(current * (1 - alpha / 2), rate.rate());
  EXPECT_DOUBLE_EQ(alpha * 15 / 16 + 1.0 / 16, rate.alpha());
  rate.advance(at(13 * period));
  EXPECT_LT(rate.rate(), current) << "stages begin anew";
}

TEST(Dcqcn, ItsTimerIsNoShorterThanThePapersNorThanARoundTrip) {
  for (const auto& [round_trip, least] : {std::pair{10us, 55us}, std::pair{100us, 100us}}) {
    Dcqcn rate(mtu);
    ASSERT_TRUE(rate.on_notification(at(0s), {round_trip, round_trip, 2 * mtu, 80 * mtu}));
    const double before = rate.rate();
    rate.advance(at(least - 1us));
    EXPECT_DOUBLE_EQ(before, rate.rate());
    rate.advance(at(least));
    EXPECT_LT(before, rate.rate());
  }
}

// The byte counter alone adds from its fifth stage on; R_HAI comes when both are beyond it.
TEST(Dcqcn, CountsBytesToo) {
  Dcqcn rate(mtu);
  ASSERT_TRUE(
      rate.on_notification(at(0s), {.round_trip = 1ms, .least_round_trip = 1ms, .in_flight = 2 * mtu, .window = 800 * mtu}));
  const double target = rate.target(), step = 0.5 * mtu / 1e-3;
  const auto stage = [&] { rate.on_sent(at(0s), static_cast<std::size_t>(36e-3 * rate.target()) + 2); };
  for (int i = 0; i < 4; ++i) stage();
  EXPECT_DOUBLE_EQ(target, rate.target());
  EXPECT_DOUBLE_EQ(target * (1 - 0.5 / 16), rate.rate());
  rate.on_sent(at(0s), 1);  // of the next stage, with the counter at 0
  EXPECT_DOUBLE_EQ(target * (1 - 0.5 / 16), rate.rate());
  stage();
  stage();
  EXPECT_DOUBLE_EQ(target + 2 * step, rate.target());
  rate.advance(at(5ms));
  EXPECT_DOUBLE_EQ(target + 7 * step, rate.target()) << "the byte counter is beyond the fifth stage";
  rate.advance(at(6ms));
  EXPECT_DOUBLE_EQ(target + 17 * step, rate.target());
}

TEST(Dcqcn, SendsAPacketForEachRoundTripAtLeastAndTheLinesRateAtMost) {
  Dcqcn rate(mtu);
  Time now = at(0s);
  for (int i = 0; i < 20; ++i, now += 100us) ASSERT_TRUE(rate.on_notification(now, path));
  EXPECT_DOUBLE_EQ(mtu / round, rate.rate());
  double before = rate.rate();
  for (now += 100us; rate.limits(); now += 100us, rate.advance(now)) {
    ASSERT_LE(before, rate.rate());
    ASSERT_LE(rate.rate(), 80 * mtu / 50e-6);
    ASSERT_LT(now, at(1s)) << "it comes back";
    before = rate.rate();
  }
  EXPECT_TRUE(rate.may_send(at(0s)));
}

TEST(Dcqcn, AlphaFadesAlsoWhileNothingLimits) {
  Dcqcn rate(mtu);
  ASSERT_TRUE(rate.on_notification(at(0s), path));
  rate.advance(at(1s));
  ASSERT_FALSE(rate.limits());
  ASSERT_TRUE(rate.on_notification(at(10s), path));
  EXPECT_NEAR(sent, rate.rate(), sent / 1000);
  EXPECT_NEAR(1.0 / 16, rate.alpha(), 1e-3);
}

TEST(Dcqcn, SpacesPacketsAndLetsALateThreadCatchUp) {
  Dcqcn rate(mtu);
  ASSERT_TRUE(rate.on_notification(at(0s), path));  // 10 us for a packet, and up to 100 us to catch up
  const auto burst = [&](Time now) {
    int packets = 0;
    for (; rate.may_send(now); ++packets) rate.on_sent(now, mtu);
    return packets;
  };
  EXPECT_EQ(11, burst(at(0s)));
  EXPECT_EQ(at(10us), rate.ready());
  EXPECT_EQ(0, burst(at(9us)));
  EXPECT_EQ(1, burst(at(10us)));
  EXPECT_EQ(4, burst(at(50us)));
}

// Of four lanes each takes eight times as many rounds, and adds an eighth.
TEST(Dcqcn, FlowsOfAJobGrowAsOne) {
  Dcqcn rate(mtu, 4);
  ASSERT_TRUE(rate.on_notification(at(0s), path));
  const double rounds = 8 * 20 * 0.3 / 0.53 / 5;
  rate.advance(at(Duration(static_cast<std::int64_t>(100'000 * rounds - 1000))));
  EXPECT_DOUBLE_EQ(sent / 2, rate.rate());
  rate.advance(at(Duration(static_cast<std::int64_t>(100'000 * rounds * 5 + 1000))));
  EXPECT_NEAR(sent + 0.5 / 8 * rounds * mtu / round, rate.target(), 1);
}

TEST(Dcqcn, StaysWithinItsBoundsWhateverComes) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    testing::Random random(seed);
    Dcqcn rate(256U << random.below(9), 1 + static_cast<std::uint32_t>(random.below(4)));
    const Duration least(1000 + random.below(1U << (10 + random.below(11))));
    const std::size_t window = std::size_t{1024} << random.below(10);
    Time now = at(0s);
    double line = 0;
    for (int step = 0; step < 300; ++step) {
      now += Duration(random.below(1U << random.below(30)));
      if (random.chance(0.3)) {
        const double before = rate.rate();
        const bool limited = rate.limits();
        const Duration round_trip = least * (1 + random.below(20));
        if (rate.on_notification(now, {round_trip, least, random.below(window + 1), window})) {
          line = static_cast<double>(window) / std::chrono::duration<double>(least).count();
          ASSERT_TRUE(rate.limits());
          ASSERT_LE(rate.rate(), line);
          ASSERT_LE(rate.target(), line);
        } else {
          ASSERT_EQ(before, rate.rate());
          ASSERT_EQ(limited, rate.limits());
        }
      }
      rate.advance(now);
      for (int packet = 0; packet < 20 && rate.may_send(now); ++packet) rate.on_sent(now, random.below(9000));
      ASSERT_GT(rate.alpha(), 0);
      ASSERT_LE(rate.alpha(), 1);
      if (!rate.limits()) continue;
      ASSERT_GT(rate.rate(), 0);
      ASSERT_LE(rate.rate(), line);
    }
    rate.advance(now + 3600s);
    ASSERT_FALSE(rate.limits()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace netsum::roce
