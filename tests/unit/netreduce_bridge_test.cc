// Where the bridge sends frames, with hand-made ones and against a model that keeps everything.
#include "protocol/netreduce/bridge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "netsum/error.h"
#include "wire/ethernet.h"

namespace netsum::netreduce {
namespace {

using wire::ethernet::Address;
using namespace std::chrono_literals;

constexpr Address alice = {0x52, 0x54, 0, 0, 0, 1}, bob = {0x52, 0x54, 0, 0, 0, 2}, carol = {0x52, 0x54, 0, 0, 0, 3};
constexpr Address broadcast = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

struct Tag {
  std::uint16_t type = wire::ethernet::vlan;
  std::uint16_t control = 0;  // priority and VLAN
};

using Frame = std::vector<std::byte>;

Frame frame(const Address& to, const Address& from, std::optional<Tag> tag = {}) {
  Frame bytes;
  const auto put = [&](std::uint16_t value) {
    bytes.push_back(static_cast<std::byte>(value >> 8));
    bytes.push_back(static_cast<std::byte>(value & 0xff));
  };
  for (const Address& address : {to, from}) {
    for (const std::uint8_t byte : address) bytes.push_back(std::byte{byte});
  }
  if (tag) {
    put(tag->type);
    put(tag->control);
  }
  put(wire::ethernet::ipv4);
  bytes.resize(bytes.size() + 46);
  return bytes;
}

Frame in_vlan(const Address& to, const Address& from, std::uint16_t vlan) {
  return frame(to, from, Tag{.control = vlan});
}

std::vector<Endpoint> some_ports(std::uint16_t count) {
  std::vector<Endpoint> ports(count);
  for (std::uint16_t i = 0; i < count; ++i) ports[i].port = i;
  return ports;
}

TEST(OneArm, SendsBackWhatIsForOneAndNothingElse) {
  Bridge bridge({.ports = some_ports(1), .one_arm = true});
  const Endpoint port = some_ports(1).front();
  const Address host{2, 0, 0, 0, 0, 1}, other{2, 0, 0, 0, 0, 2}, everybody{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  for (const Frame& bytes : {frame(host, other), frame(other, host), in_vlan(host, other, 7)}) {
    const auto to = bridge.route(bytes, port, Time{});
    ASSERT_EQ(to.size(), 1U);
    EXPECT_EQ(to.front(), port);
  }
  EXPECT_TRUE(bridge.route(frame(everybody, host), port, Time{}).empty());
  EXPECT_EQ(bridge.counters().forwarded, 3U);
  EXPECT_EQ(bridge.counters().filtered, 1U);

  const std::vector<Endpoint> arms = some_ports(3);  // the switch spreads connections over them, in each direction by itself
  Bridge several({.ports = arms, .one_arm = true});
  for (const Endpoint& arm : {arms[2], arms[0], arms[1], arms[2]}) {
    const auto to = several.route(frame(host, other), arm, Time{});
    ASSERT_EQ(to.size(), 1U);
    EXPECT_EQ(to.front(), arm);
  }
  EXPECT_TRUE(several.route(frame(everybody, host), arms[1], Time{}).empty());
  EXPECT_TRUE(several.route(frame(host, other), some_ports(4)[3], Time{}).empty());
}

class NetreduceBridge : public testing::Test {
 protected:
  // Numbers of the ports that a frame goes to.
  std::vector<int> route(int from, const Frame& bytes) {
    std::vector<int> to;
    for (const Endpoint& port : bridge_.route(bytes, Endpoint{.port = static_cast<std::uint16_t>(from)}, now_)) {
      to.push_back(port.port);
    }
    std::sort(to.begin(), to.end());
    return to;
  }
  using To = std::vector<int>;

  Bridge bridge_{{.ports = some_ports(4)}};
  Time now_{1h};
};

TEST_F(NetreduceBridge, SendsToAllOthersWhatItDoesNotKnow) {
  EXPECT_EQ(route(0, frame(bob, alice)), To({1, 2, 3}));
  EXPECT_EQ(route(2, frame(bob, carol)), To({0, 1, 3}));
  EXPECT_EQ(route(3, frame(bob, Address{2})), To({0, 1, 2}));
  EXPECT_EQ(bridge_.counters().flooded, 3U);
  EXPECT_EQ(bridge_.counters().forwarded, 0U);
}

TEST_F(NetreduceBridge, LearnsWhereSendersAre) {
  route(2, frame(broadcast, bob));
  EXPECT_EQ(route(0, frame(bob, alice)), To({2}));
  EXPECT_EQ(route(2, frame(alice, bob)), To({0}));
  EXPECT_EQ(bridge_.counters().forwarded, 2U);
  EXPECT_EQ(bridge_.known(now_), 2U);
}

TEST_F(NetreduceBridge, SendsNothingBack) {
  route(2, frame(broadcast, bob));
  EXPECT_EQ(route(2, frame(bob, carol)), To());
  EXPECT_EQ(route(2, frame(bob, bob)), To());
  EXPECT_EQ(bridge_.counters().filtered, 2U);
}

TEST_F(NetreduceBridge, SendsGroupsToAllOthersAlsoLinkLocalOnes) {
  const Address groups[] = {broadcast,
                            {0x01, 0x00, 0x5e, 0, 0, 1},
                            {0x33, 0x33, 0, 0, 0, 1},
                            {0x01, 0x80, 0xc2, 0, 0, 0x00},   // spanning tree
                            {0x01, 0x80, 0xc2, 0, 0, 0x02},   // LACP
                            {0x01, 0x80, 0xc2, 0, 0, 0x0e}};  // LLDP
  for (const Address& group : groups) EXPECT_EQ(route(1, frame(group, alice)), To({0, 2, 3}));
}

TEST_F(NetreduceBridge, CarriesWhatHasNoSendersAddressAndLearnsNothingFromIt) {
  const Address group = {0x03, 0, 0, 0, 0, 9}, nobody{};
  route(2, frame(broadcast, group));
  route(2, frame(broadcast, nobody));
  EXPECT_EQ(bridge_.known(now_), 0U);
  EXPECT_EQ(route(0, frame(group, alice)), To({1, 2, 3}));
  EXPECT_EQ(route(0, frame(nobody, alice)), To({1, 2, 3}));
}

TEST_F(NetreduceBridge, FollowsAnAddressThatMoves) {
  route(2, frame(broadcast, bob));
  route(3, frame(broadcast, bob));
  EXPECT_EQ(route(0, frame(bob, alice)), To({3}));
  EXPECT_EQ(bridge_.counters().moved, 1U);
  EXPECT_EQ(bridge_.known(now_), 2U);
}

TEST_F(NetreduceBridge, ForgetsWhoWasSilentForFiveMinutes) {
  route(2, frame(broadcast, bob));
  now_ += 5min - 1ns;
  EXPECT_EQ(route(0, frame(bob, alice)), To({2}));
  now_ += 1ns;
  EXPECT_EQ(route(0, frame(bob, alice)), To({1, 2, 3}));  // being written to is not being heard of
  route(2, frame(broadcast, bob));
  EXPECT_EQ(route(0, frame(bob, alice)), To({2}));
  now_ += 4min;
  route(2, frame(broadcast, bob));
  now_ += 4min;
  EXPECT_EQ(route(0, frame(bob, alice)), To({2}));
}

TEST_F(NetreduceBridge, KeepsVlansApart) {
  route(1, in_vlan(broadcast, bob, 5));
  route(2, in_vlan(broadcast, bob, 6));
  EXPECT_EQ(route(0, in_vlan(bob, alice, 5)), To({1}));
  EXPECT_EQ(route(0, in_vlan(bob, alice, 6)), To({2}));
  EXPECT_EQ(route(0, in_vlan(bob, alice, 7)), To({1, 2, 3}));
  EXPECT_EQ(route(0, frame(bob, alice)), To({1, 2, 3}));
  EXPECT_EQ(route(0, frame(bob, alice, Tag{wire::ethernet::provider_vlan, 5})), To({1, 2, 3}));
  EXPECT_EQ(route(0, in_vlan(bob, alice, 0xe000 | 5)), To({1}));  // whatever its priority
}

TEST_F(NetreduceBridge, APriorityAloneIsNoVlan) {
  route(1, in_vlan(broadcast, bob, 0x6000));
  EXPECT_EQ(route(0, frame(bob, alice)), To({1}));
  EXPECT_EQ(route(1, in_vlan(alice, bob, 0xe000)), To({0}));
  EXPECT_EQ(route(2, frame(bob, carol, Tag{wire::ethernet::provider_vlan, 0x6000})), To({1}));
}

TEST_F(NetreduceBridge, RefusesWhatIsNoFrameOrFromNoPort) {
  Frame bytes = in_vlan(broadcast, bob, 5);
  for (std::size_t size = 0; size < 14; ++size)
    EXPECT_EQ(route(1, Frame(bytes.begin(), bytes.begin() + static_cast<long>(size))), To());
  EXPECT_EQ(bridge_.counters().malformed, 14U);
  for (std::size_t size = 14; size < 18; ++size) {  // a tag that is cut off is none
    EXPECT_EQ(route(1, Frame(bytes.begin(), bytes.begin() + static_cast<long>(size))), To({0, 2, 3}));
  }
  EXPECT_EQ(route(4, bytes), To());
  EXPECT_EQ(bridge_.route(bytes, Endpoint{.scope = 1}, now_).size(), 0U);
  EXPECT_EQ(bridge_.counters().no_such_port, 2U);
}

TEST_F(NetreduceBridge, BetweenTwoPortsItIsAWire) {
  bridge_ = Bridge({.ports = some_ports(2)});
  EXPECT_EQ(route(0, frame(bob, alice)), To({1}));
  EXPECT_EQ(route(1, frame(alice, bob)), To({0}));
}

TEST_F(NetreduceBridge, AFloodOfAddressesDrivesNobodyOut) {
  bridge_ = Bridge({.ports = some_ports(4), .addresses = 64});
  route(2, frame(broadcast, bob));
  for (std::uint8_t i = 0; i < 250; ++i) {
    for (std::uint8_t j = 0; j < 10; ++j) route(1, frame(broadcast, {0x02, 0, 0, 0, j, i}));
  }
  EXPECT_EQ(bridge_.known(now_), 64U);
  EXPECT_EQ(bridge_.counters().not_learned, 2501U - 64);
  EXPECT_EQ(route(0, frame(bob, alice)), To({2}));
  now_ += 5min;  // and when the flood is over there is room
  route(3, frame(broadcast, carol));
  EXPECT_EQ(bridge_.known(now_), 1U);
  EXPECT_EQ(route(0, frame(carol, alice)), To({3}));
}

TEST_F(NetreduceBridge, RefusesAPortTwice) {
  EXPECT_THROW(Bridge({.ports = {Endpoint{.port = 1}, Endpoint{.port = 2}, Endpoint{.port = 1}}}), Error);
}

// Random traffic: the same as a bridge whose table is a map without bounds, and every frame counted once.
TEST_F(NetreduceBridge, IsWhatABridgeIsByDefinition) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    const auto count = static_cast<std::uint16_t>(2 + below(6));
    bridge_ = Bridge({.ports = some_ports(count)});
    struct Seen {
      int port;
      Time when;
    };
    std::map<std::pair<Address, int>, Seen> model;
    const auto address = [&] {
      Address made = {
          static_cast<std::uint8_t>(below(10) == 0 ? 0x01 : 0x52), 0, 0, 0, 0, static_cast<std::uint8_t>(below(20))};
      if (below(30) == 0) made = {};
      return made;
    };
    constexpr std::uint64_t frames = 5000;
    for (std::uint64_t i = 0; i < frames; ++i) {
      now_ += std::chrono::milliseconds(below(20'000));
      const Address to = address(), from = address();
      const auto vlan = static_cast<std::uint16_t>(below(3));
      const int port = static_cast<int>(below(count));
      if (!wire::ethernet::is_multicast(from) && from != Address{}) model[{from, vlan}] = {port, now_};
      To expected;
      const auto known = model.find({to, vlan});
      if (!wire::ethernet::is_multicast(to) && known != model.end() && now_ - known->second.when < 5min) {
        if (known->second.port != port) expected = {known->second.port};
      } else {
        for (int other = 0; other < count; ++other) {
          if (other != port) expected.push_back(other);
        }
      }
      const bool tagged = vlan != 0 || below(2) == 0;
      ASSERT_EQ(route(port, tagged ? in_vlan(to, from, vlan) : frame(to, from)), expected)
          << "seed " << seed << " frame " << i;
    }
    const BridgeCounters& counters = bridge_.counters();
    EXPECT_EQ(counters.forwarded + counters.flooded + counters.filtered, frames);
    EXPECT_GT(counters.forwarded, 0U);
    EXPECT_GT(counters.filtered, 0U);
    EXPECT_GT(counters.moved, 0U);
  }
}

}  // namespace
}  // namespace netsum::netreduce
