// Ports of an experiment's network: rates, queues, buffers, marks and losses, and the ways through trees.

#include "sim/fabric.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace netsum::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr std::uint64_t gigabit = 1'000'000'000;

Uniform links(PortPlan port) {
  Uniform all;
  all.link = all.trunk = port;
  return all;
}

std::string way(const Topology& topology, const std::string& from, const std::string& to) {
  const NodeId end = *topology.find(to);
  std::string text;
  for (NodeId at = *topology.find(from); at != end;) text += topology[at = topology.next(at, end)].name + " ";
  return text;
}

TEST(Topology, WaysThroughATreeOfAnyDepth) {
  const Topology topology = tree({2, 2, 2}, {});
  EXPECT_EQ(15U, topology.size());
  EXPECT_EQ("s0.0 h1 ", way(topology, "h0", "h1"));
  EXPECT_EQ("s0.0 s0 s0.1 h2 ", way(topology, "h0", "h2"));
  EXPECT_EQ("s0.0 s0 sw s1 s1.1 h7 ", way(topology, "h0", "h7"));
  EXPECT_EQ("s1 sw ", way(topology, "s1.0", "sw"));
  EXPECT_EQ("s1 s1.0 ", way(topology, "sw", "s1.0"));
}

TEST(Topology, ASharedBottleneckHasHalfOfTheHostsBehindItsTrunk) {
  const Topology topology = shared_bottleneck(2, 2, {});
  EXPECT_EQ("left h1 ", way(topology, "h0", "h1"));
  EXPECT_EQ("left right h2 ", way(topology, "h0", "h2"));
  EXPECT_EQ("right left h0 ", way(topology, "h3", "h0"));
}

TEST(Fabric, APortSendsAtItsRateAndAWireTakesItsTime) {
  const Topology topology = star(2, links({.bits_per_second = gigabit, .delay = microseconds(5)}));
  Fabric fabric(topology, 1);
  const NodeId host = *topology.find("h0"), other = *topology.find("h1");
  for (int i = 1; i <= 3; ++i) {
    const auto hop = fabric.forward(Time{}, host, other, 1250);  // 10 us
    ASSERT_TRUE(hop);
    EXPECT_EQ(*topology.find("sw"), hop->node);
    EXPECT_EQ(Time(microseconds(10 * i + 5)), hop->at);
  }
  EXPECT_EQ(3750U, fabric.queued_bytes(host, Fabric::Way::up, Time{}));
  EXPECT_EQ(1250U, fabric.queued_bytes(host, Fabric::Way::up, Time(microseconds(20))));
  // An idle port saves nothing up.
  EXPECT_EQ(Time(microseconds(1015)), fabric.forward(Time(microseconds(1000)), host, other, 1250)->at);
}

TEST(Fabric, RatesHoldOverManyPacketsOfOddLengths) {
  const Topology topology = star(1, links({.bits_per_second = 100 * gigabit}));
  Fabric fabric(topology, 1);
  Time last{};
  for (int i = 0; i < 1'000'000; ++i) last = fabric.forward(Time{}, 1, 0, 67)->at;
  EXPECT_EQ(Time(nanoseconds(5'360'000)), last);
}

// Whole picoseconds a byte made 1000 Gbit/s of 900.
TEST(Fabric, RatesAreExactWhereAByteTakesNoWholePicoseconds) {
  constexpr std::uint64_t frames = 1'000'000, bytes = 1250;
  for (const std::uint64_t gigabits : {3U, 700U, 900U, 999U, 1600U}) {
    const Topology topology = star(1, links({.bits_per_second = gigabits * gigabit}));
    Fabric fabric(topology, 1);
    Time last{};
    for (std::uint64_t i = 0; i < frames; ++i) last = fabric.forward(Time{}, 1, 0, bytes)->at;
    const std::uint64_t bits = frames * bytes * 8;
    EXPECT_EQ(Time(nanoseconds((bits + gigabits - 1) / gigabits)), last) << gigabits;
    EXPECT_EQ(frames * bytes, fabric.queued_bytes(1, Fabric::Way::up, Time{})) << gigabits;
  }
}

TEST(Fabric, ABufferDropsWhatDoesNotFitAndMarksBehindItsThreshold) {
  const Topology topology = star(1, links({.bits_per_second = gigabit, .buffer_bytes = 5000, .mark_bytes = 2500}));
  Fabric fabric(topology, 1);
  int sent = 0, marked = 0;
  for (int i = 0; i < 10; ++i) {
    const auto hop = fabric.forward(Time{}, 1, 0, 1000);
    sent += hop.has_value();
    marked += hop && hop->marked;
  }
  EXPECT_EQ(5, sent);
  EXPECT_EQ(2, marked);  // those that found 3000 and 4000 bytes
  const PortCounts& counts = fabric.counts(1, Fabric::Way::up);
  EXPECT_EQ(5U, counts.dropped);
  EXPECT_EQ(2U, counts.marked);
  EXPECT_EQ(5000U, counts.longest_queue);
  EXPECT_TRUE(fabric.forward(Time(microseconds(8)), 1, 0, 1000));  // one has left
}

TEST(Fabric, PortsOfASwitchShareItsBuffer) {
  Uniform all = links({.bits_per_second = gigabit});
  all.switch_plan.shared_buffer_bytes = 3000;
  const Topology topology = star(2, all);
  Fabric fabric(topology, 1);
  EXPECT_TRUE(fabric.forward(Time{}, 0, 1, 1000));
  EXPECT_TRUE(fabric.forward(Time{}, 0, 1, 1000));
  EXPECT_TRUE(fabric.forward(Time{}, 0, 2, 1000));
  EXPECT_FALSE(fabric.forward(Time{}, 0, 2, 1000));
  EXPECT_TRUE(fabric.forward(Time{}, 1, 0, 1000)) << "a host's port has no part in it";
  EXPECT_TRUE(fabric.forward(Time(microseconds(8)), 0, 2, 1000));
}

TEST(Fabric, LosesAsManyAsAskedAndTheSameOnesAgain) {
  const Topology topology = star(2, links({.bits_per_second = gigabit, .loss = 0.01}));
  std::vector<bool> first;
  for (int run = 0; run < 2; ++run) {
    Fabric fabric(topology, 7);
    std::vector<bool> arrived;
    for (int i = 0; i < 100'000; ++i) arrived.push_back(fabric.forward(Time{}, 1, 0, 100).has_value());
    EXPECT_NEAR(1000, static_cast<double>(fabric.counts(1, Fabric::Way::up).lost), 100);
    if (run == 1) {
      EXPECT_EQ(first, arrived);
    }
    first = arrived;
  }
}

TEST(Fabric, LosesInBurstsOfTheAskedLength) {
  const Topology topology = star(2, links({.loss = 0.01, .loss_burst = 10}));
  Fabric fabric(topology, 7);
  int lost = 0, bursts = 0;
  bool before = false;
  for (int i = 0; i < 1'000'000; ++i) {
    const bool loses = !fabric.forward(Time{}, 1, 0, 100);
    lost += loses ? 1 : 0;
    bursts += loses && !before ? 1 : 0;
    before = loses;
  }
  EXPECT_NEAR(10'000, lost, 1'500);
  EXPECT_NEAR(10, static_cast<double>(lost) / bursts, 1);
}

TEST(Fabric, ALinkThatIsOutLosesWhatIsSentMeanwhile) {
  const Topology topology =
      star(2, links({.outages = {{microseconds(2), microseconds(4)}, {microseconds(6), microseconds(7)}}}));
  const Time origin(std::chrono::seconds(1));
  Fabric fabric(topology, 7, origin);
  std::string arrived;
  for (int i = 0; i < 9; ++i) arrived += fabric.forward(origin + microseconds(i), 1, 0, 100) ? '+' : '-';
  EXPECT_EQ("++--++-++", arrived);
  EXPECT_EQ(3U, fabric.counts(1, Fabric::Way::up).lost);
}

}  // namespace
}  // namespace netsum::sim
