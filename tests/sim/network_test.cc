// Each fault of a link happens as often as asked, to the link that it was asked for, and not when it was taken away.

#include <gtest/gtest.h>

#include "sim/network.h"

namespace netsum::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::size_t packet_bytes = 1000;

struct Result {
  Tally tally;
  std::vector<std::vector<Network::Arrival>> arrivals;  // by datagram
  std::uint64_t lost = 0, doubled = 0, damaged = 0, shortened = 0;
};

struct Sent {
  explicit Sent(const LinkFaults& links, const Limits& limits = {}) {
    scenario.seed = 5;
    scenario.links = links;
    scenario.links.least_delay = scenario.links.most_delay = microseconds(10);
    scenario.settings.limits = limits;
  }

  Result send(std::size_t count, Duration gap = microseconds(100)) const {
    Result result;
    Network network(scenario, 3, result.tally);
    const std::vector<std::byte> bytes(packet_bytes, std::byte{0x55});
    Time now{};
    for (std::size_t i = 0; i < count; ++i, now += gap) {
      const auto arrivals = network.send(now, 0, 1, {}, {}, bytes, true);
      result.lost += arrivals.empty();
      result.doubled += arrivals.size() == 2;
      for (const auto& arrival : arrivals) {
        EXPECT_GE(arrival.at, now + microseconds(10));
        result.shortened += arrival.datagram.bytes.size() < bytes.size();
        result.damaged += arrival.datagram.bytes.size() == bytes.size() && arrival.datagram.bytes != bytes;
      }
      result.arrivals.emplace_back(arrivals.begin(), arrivals.end());
    }
    return result;
  }

  Scenario scenario;
};

std::uint64_t count(const Result& result, Fault fault) {
  return result.tally.faults[static_cast<std::size_t>(fault)];
}

TEST(Network, WithoutFaultsEverythingArrivesAsItWas) {
  const Result result = Sent({}).send(1000);
  EXPECT_EQ(0U, result.lost + result.doubled + result.damaged + result.shortened);
  EXPECT_EQ(0U, result.tally.live_faults);
  EXPECT_EQ(1000U, result.tally.packets);
  for (std::size_t i = 0; i < 1000; ++i) EXPECT_EQ(Time(microseconds(100 * i + 10)), result.arrivals[i].front().at);
}

TEST(Network, LosesDoublesDamagesAndShortensAsOftenAsAsked) {
  LinkFaults links;
  links.loss = 0.1;
  links.duplicate = 0.2;
  links.corrupt = 0.05;
  links.truncate = 0.02;
  const Result result = Sent(links).send(20'000);
  EXPECT_NEAR(2000, static_cast<double>(result.lost), 200);
  EXPECT_NEAR(3600, static_cast<double>(result.doubled), 300);
  EXPECT_NEAR(900, static_cast<double>(result.damaged), 150);
  EXPECT_NEAR(360, static_cast<double>(result.shortened), 100);
  EXPECT_EQ(result.lost, count(result, Fault::loss));
  EXPECT_EQ(result.doubled, count(result, Fault::duplicate));
  EXPECT_EQ(result.shortened, count(result, Fault::truncate));
  EXPECT_GE(result.tally.live_faults, result.lost + result.doubled + result.damaged + result.shortened);
}

TEST(Network, OneBitIsDamagedAtATime) {
  LinkFaults links;
  links.corrupt = 1;
  for (const auto& arrivals : Sent(links).send(200).arrivals) {
    int bits = 0;
    for (const std::byte byte : arrivals.front().datagram.bytes)
      bits += std::popcount(std::to_integer<unsigned>(byte ^ std::byte{0x55}));
    EXPECT_EQ(1, bits);
  }
}

TEST(Network, ASecondLinkDoesNotRepairWhatTheFirstHasDamaged) {
  LinkFaults links;
  links.corrupt = 1;
  Tally tally;
  Network network(Sent(links).scenario, 3, tally);
  const std::vector<std::byte> whole(1, std::byte{0x55});  // each link damages one of eight bits
  for (int i = 0; i < 200; ++i) {
    const std::vector<std::byte> once = network.send({}, 0, 1, {}, {}, whole, true).front().datagram.bytes;
    EXPECT_NE(whole, once);
    EXPECT_NE(whole, network.send({}, 1, 2, {}, {}, once, true).front().datagram.bytes);
  }
}

TEST(Network, BurstsLoseSeveralInARow) {
  LinkFaults links;
  links.burst = 0.01;
  links.burst_length = microseconds(450);  // and a packet every 100
  const Result result = Sent(links).send(20'000);
  std::size_t runs = 0;
  for (std::size_t i = 1; i < result.arrivals.size(); ++i)
    runs += result.arrivals[i].empty() && !result.arrivals[i - 1].empty();
  ASSERT_GT(runs, 100U);
  EXPECT_NEAR(5.0, static_cast<double>(result.lost) / static_cast<double>(runs), 1.5);
}

TEST(Network, LatePacketsComeUpToSecondsLaterAndOutOfOrder) {
  LinkFaults links;
  links.late = 0.1;
  links.latest = std::chrono::seconds(2);
  const Result result = Sent(links).send(10'000);
  Duration latest{};
  for (std::size_t i = 0; i < result.arrivals.size(); ++i)
    latest = std::max(latest, result.arrivals[i].front().at - Time(microseconds(100 * i)));
  EXPECT_GT(latest, milliseconds(1500));
  EXPECT_LE(latest, milliseconds(2001));
  EXPECT_GT(count(result, Fault::reorder), 1000U);
}

TEST(Network, AQueueMarksAndThenDropsItsTail) {
  LinkFaults links;
  links.bytes_per_second = 10'000'000;
  links.queue_bytes = 20'000;
  links.mark_bytes = 5'000;
  const Result fast = Sent(links).send(200, microseconds(10));  // ten times the port's rate
  EXPECT_GT(count(fast, Fault::queue), 100U);
  EXPECT_GT(count(fast, Fault::mark), 20U);
  EXPECT_FALSE(fast.arrivals[0].front().datagram.marked);
  std::size_t marked = 0;
  Time last{};
  for (const auto& arrivals : fast.arrivals) {
    if (arrivals.empty()) continue;
    marked += arrivals.front().datagram.marked;
    EXPECT_GT(arrivals.front().at, last);  // a queue keeps the order
    last = arrivals.front().at;
  }
  EXPECT_GT(marked, 10U);
  EXPECT_EQ(0U, count(Sent(links).send(200, milliseconds(1)), Fault::queue));
}

TEST(Network, ACutIsOneDirectionOfOneLinkForAWhile) {
  Tally tally;
  const Sent sent({});
  Network network(sent.scenario, 3, tally);
  const std::vector<std::byte> bytes(10);
  const auto arrives = [&](Time now, HostId from, HostId to) {
    return !network.send(now, from, to, {}, {}, bytes, false).empty();
  };
  network.cut(0, 1, Time(milliseconds(5)));
  EXPECT_FALSE(arrives(Time(milliseconds(4)), 0, 1));
  EXPECT_TRUE(arrives(Time(milliseconds(4)), 1, 0));
  EXPECT_TRUE(arrives(Time(milliseconds(4)), 0, 2));
  EXPECT_TRUE(arrives(Time(milliseconds(5)), 0, 1));
  EXPECT_TRUE(network.control(Time(milliseconds(4)), 0, 1).lost);
  EXPECT_FALSE(network.control(Time(milliseconds(5)), 0, 1).lost);
}

TEST(Network, ALaneLosesEveryThirdPacketForEver) {
  Tally tally;
  const Sent sent({});
  Network network(sent.scenario, 3, tally);
  const std::vector<std::byte> bytes(10);
  Endpoint lane, other;
  lane.port = 7171;
  other.port = 7170;
  network.lose_every(3, 0, 1, lane.port, Fault::lossy_lane);
  const auto arrives = [&](HostId from, HostId to, const Endpoint& there) {
    return !network.send(Time{}, from, to, {}, there, bytes, false).empty();
  };
  for (int i = 1; i <= 30; ++i) {
    EXPECT_EQ(i % 3 != 0, arrives(0, 1, lane));
    EXPECT_TRUE(arrives(0, 1, other));
    EXPECT_TRUE(arrives(1, 0, lane));
  }
  EXPECT_FALSE(network.control(Time{}, 0, 1).lost);
  network.cut(1, 0, never);
  EXPECT_TRUE(network.is_dead(1, 0));
  EXPECT_FALSE(network.is_dead(0, 1));
}

TEST(Network, TakingAKindAwayLeavesTheOthersAsTheyWere) {
  LinkFaults links;
  links.loss = 0.1;
  links.duplicate = 0.1;
  links.corrupt = 0.1;
  Limits without;
  without.kinds.erase(Fault::corrupt);
  const Result all = Sent(links).send(5000), some = Sent(links, without).send(5000);
  EXPECT_EQ(0U, some.damaged);
  EXPECT_GT(all.damaged, 100U);
  for (std::size_t i = 0; i < 5000; ++i) EXPECT_EQ(all.arrivals[i].size(), some.arrivals[i].size());
}

TEST(Network, OnlyTheFirstFaultsHappenWhenLimited) {
  LinkFaults links;
  links.loss = 0.1;
  Limits seven;
  seven.faults = 7;
  const Result all = Sent(links).send(2000), some = Sent(links, seven).send(2000);
  EXPECT_EQ(7U, some.lost);
  std::size_t seen = 0;
  for (std::size_t i = 0; seen < 7; ++i) {
    EXPECT_EQ(all.arrivals[i].empty(), some.arrivals[i].empty());
    seen += all.arrivals[i].empty();
  }
}

}  // namespace
}  // namespace netsum::sim
