// Who aggregates whom, as directions that packets carry, and what the parameter server reads from them.
#include "protocol/atp/topology.h"

#include <gtest/gtest.h>

#include "support/atp_packets.h"

namespace netsum::atp {
namespace {

using netsum::testing::ranks_of;
using wire::atp::Directions;

using FanIn = Directions::FanIn;
using Bitmap = Directions::Words;

Topology topology_of(const TopologyConfig& config) {
  EXPECT_EQ("", check(config));
  return Topology(config);
}

std::vector<std::pair<bool, std::uint32_t>> listed(const std::vector<Topology::Child>& children) {
  std::vector<std::pair<bool, std::uint32_t>> list;
  for (const auto& child : children) list.emplace_back(child.is_switch, child.index);
  return list;
}
using List = std::vector<std::pair<bool, std::uint32_t>>;

// Two racks and the parameter server's own, where two of the workers are.
const TopologyConfig figure_9{{2, 2, at_server}, {0, 0, 1, 1, 2, 2}};

TEST(AtpTopology, WithoutSwitchesTheServerAddsUpRanks) {
  const Topology topology = topology_of({{}, {at_server, at_server, at_server}});
  EXPECT_EQ(3U, topology.world_size());
  EXPECT_EQ(0U, topology.switches());
  EXPECT_EQ(0, topology.server_level());
  EXPECT_EQ((Directions{0, {3, 0, 0, 0}, {4, 0, 0, 0}}), topology.path(2));
  EXPECT_EQ(ranks_of({2}), topology.decode(topology.path(2)));
}

TEST(AtpTopology, OneRackIsOneLevelBelowTheServer) {
  const Topology topology = topology_of({{at_server}, {0, 0}});
  EXPECT_EQ(0, topology.level(0));
  EXPECT_EQ(1, topology.server_level());
  EXPECT_EQ(at_server, topology.parent(0));
  EXPECT_EQ((List{{false, 0}, {false, 1}}), listed(topology.children(0)));
  EXPECT_EQ((List{{true, 0}}), listed(topology.server_children()));
  EXPECT_EQ((Directions{0, {2, 1, 0, 0}, {1, 1, 0, 0}}), topology.path(0));
  EXPECT_EQ((Directions{0, {2, 1, 0, 0}, {2, 1, 0, 0}}), topology.path(1));
}

TEST(AtpTopology, Figure9WithWorkersAtTheParameterServersSwitch) {
  const Topology topology = topology_of(figure_9);
  EXPECT_EQ(3U, topology.switches());
  EXPECT_EQ(0, topology.level(0));
  EXPECT_EQ(0, topology.level(1));
  EXPECT_EQ(1, topology.level(2));
  EXPECT_EQ(2, topology.server_level());
  EXPECT_EQ(2U, topology.parent(1));
  EXPECT_EQ((List{{true, 0}, {true, 1}, {false, 4}, {false, 5}}), listed(topology.children(2)));
  EXPECT_EQ((List{{true, 2}}), listed(topology.server_children()));
  EXPECT_EQ((Directions{0, {2, 4, 1, 0}, {1, 1, 1, 0}}), topology.path(0));
  EXPECT_EQ((Directions{0, {2, 4, 1, 0}, {2, 2, 1, 0}}), topology.path(3));
  EXPECT_EQ((Directions{1, {0, 4, 1, 0}, {0, 8, 1, 0}}), topology.path(5));  // it skips the level that it is not at
  EXPECT_EQ(ranks_of({2, 3}), topology.below({true, 1}));
  EXPECT_EQ(ranks_of({0, 1, 2, 3, 4, 5}), topology.below({true, 2}));
  EXPECT_EQ(ranks_of({5}), topology.below({false, 5}));
}

TEST(AtpTopology, BitmapsSayWhoIsInASum) {
  const Topology topology = topology_of(figure_9);
  const auto decoded = [&](Bitmap bitmap) { return topology.decode({2, {2, 4, 1, 0}, bitmap}); };
  EXPECT_EQ(ranks_of({1}), decoded({2, 1, 1, 0}));
  EXPECT_EQ(ranks_of({0, 1}), decoded({3, 1, 1, 0}));        // one rack
  EXPECT_EQ(ranks_of({2, 3}), decoded({3, 2, 1, 0}));        // the other
  EXPECT_EQ(ranks_of({0, 1, 2, 3}), decoded({3, 3, 1, 0}));  // both: the lower bitmap is of the last to come
  EXPECT_EQ(ranks_of({0, 1, 4}), decoded({1, 5, 1, 0}));     // with a rank
  EXPECT_EQ(ranks_of({4, 5}), decoded({0, 12, 1, 0}));       // two ranks of the second level
  EXPECT_EQ(ranks_of({0, 1, 2, 3, 4, 5}), decoded({0, 15, 1, 0}));
  for (std::uint32_t rank = 0; rank < 6; ++rank) EXPECT_EQ(ranks_of({rank}), topology.decode(topology.path(rank)));
}

TEST(AtpTopology, DirectionsOfAnotherJobSayNothing) {
  const Topology topology = topology_of(figure_9);
  const auto decoded = [&](FanIn fan_in, Bitmap bitmap) { return topology.decode({2, fan_in, bitmap}); };
  EXPECT_TRUE(decoded({2, 4, 1, 0}, {1, 1, 1, 0}));
  EXPECT_FALSE(decoded({2, 4, 1, 0}, {0, 1, 1, 0}));  // of nobody
  EXPECT_FALSE(decoded({2, 4, 1, 0}, {1, 0, 1, 0}));
  EXPECT_FALSE(decoded({2, 4, 1, 0}, {1, 1, 0, 0}));
  EXPECT_FALSE(decoded({3, 4, 1, 0}, {1, 1, 1, 0}));  // another number of children
  EXPECT_FALSE(decoded({2, 5, 1, 0}, {1, 1, 1, 0}));
  EXPECT_FALSE(decoded({2, 4, 2, 0}, {1, 1, 1, 0}));
  EXPECT_TRUE(decoded({9, 4, 1, 0}, {0, 4, 1, 0}));  // rank 4 has no level 0
  // What the server gets came from one of its children.
  const Topology two_racks = topology_of({{at_server, at_server}, {0, 0, 1, 1}});
  EXPECT_TRUE(two_racks.decode({1, {2, 2, 0, 0}, {3, 2, 0, 0}}));
  EXPECT_FALSE(two_racks.decode({1, {2, 2, 0, 0}, {3, 3, 0, 0}}));
}

TEST(AtpTopology, ThreeLevelsOfSwitches) {
  // A rack below a row below a hall; another rank at the row, another at the hall, another at the server.
  const Topology topology = topology_of({{1, 2, at_server}, {0, 1, 2, at_server}});
  EXPECT_EQ(3, topology.server_level());
  EXPECT_EQ((List{{true, 2}, {false, 3}}), listed(topology.server_children()));
  EXPECT_EQ((Directions{0, {1, 2, 2, 2}, {1, 1, 1, 1}}), topology.path(0));
  EXPECT_EQ((Directions{1, {0, 2, 2, 2}, {0, 2, 1, 1}}), topology.path(1));
  EXPECT_EQ((Directions{2, {0, 0, 2, 2}, {0, 0, 2, 1}}), topology.path(2));
  EXPECT_EQ((Directions{3, {0, 0, 0, 2}, {0, 0, 0, 2}}), topology.path(3));
  EXPECT_EQ(ranks_of({0}), topology.decode({3, {1, 2, 2, 2}, {1, 1, 1, 1}}));
  EXPECT_EQ(ranks_of({0, 1}), topology.decode({3, {1, 2, 2, 2}, {1, 3, 1, 1}}));
  EXPECT_EQ(ranks_of({0, 1, 2}), topology.decode({3, {1, 2, 2, 2}, {1, 3, 3, 1}}));
}

// The order in which switches are named does not matter; nor does the shorter of two ways up.
TEST(AtpTopology, TheLongestWayFromBelowDecidesTheLevel) {
  const Topology topology = topology_of({{at_server, 0, 1, 0}, {3, 2}});
  EXPECT_EQ(0, topology.level(2));
  EXPECT_EQ(1, topology.level(1));
  EXPECT_EQ(0, topology.level(3));
  EXPECT_EQ(2, topology.level(0));
  EXPECT_EQ(3, topology.server_level());
  EXPECT_EQ(0, topology.path(0).level);
  EXPECT_EQ(0, topology.path(0).fan_in()[1]);  // from level 0 to level 2
  EXPECT_EQ(2, topology.path(0).fan_in()[2]);
}

TEST(AtpTopology, ASwitchWithoutRanksBelowIsNobodysChild) {
  const Topology topology = topology_of({{at_server, 0, at_server}, {0, 0}});
  EXPECT_TRUE(topology.used(0));
  EXPECT_FALSE(topology.used(1));
  EXPECT_FALSE(topology.used(2));
  EXPECT_EQ((List{{true, 0}}), listed(topology.server_children()));
  EXPECT_EQ((List{{false, 0}, {false, 1}}), listed(topology.children(0)));
}

TEST(AtpTopology, TooManyOrNoRanksAreRefused) {
  EXPECT_EQ("0 ranks are not between 1 and 4096", check({}));
  TopologyConfig config;
  for (std::uint32_t rack = 0; rack < 64; ++rack) {
    config.parent_of_switch.push_back(at_server);
    config.switch_of_rank.insert(config.switch_of_rank.end(), 64, rack);
  }
  EXPECT_EQ("", check(config));  // the most
  EXPECT_EQ(ranks_of({4095}), Topology(config).decode(Topology(config).path(4095)));
  config.parent_of_switch.push_back(at_server);
  config.switch_of_rank.push_back(64);
  EXPECT_EQ("4097 ranks are not between 1 and 4096", check(config));
}

TEST(AtpTopology, MoreChildrenThanANodeTakesAreRefused) {
  TopologyConfig config{{at_server}, std::vector<std::uint32_t>(257, 0)};
  EXPECT_EQ("switch 0 has 257 ranks and switches below it, and takes at most 256: put switches in between", check(config));
  config.switch_of_rank.assign(257, at_server);
  EXPECT_EQ("the parameter server has 257 ranks and switches below it, and takes at most 256: put switches in between",
            check(config));
  config.switch_of_rank.assign(256, at_server);
  EXPECT_EQ("", check(config));
}

// 256 ranks at a switch, and one beside it at the server.
TEST(AtpTopology, ManyChildrenHaveBitsOfTheirOwn) {
  TopologyConfig config{{at_server}, std::vector<std::uint32_t>(256, 0)};
  config.switch_of_rank.push_back(at_server);
  const Topology topology = topology_of(config);
  Directions path(0, {256, 2, 0, 0}, {0, 1, 0, 0});
  path.insert(0, 200);
  EXPECT_EQ(path, topology.path(200));
  EXPECT_EQ((Directions{1, {0, 2, 0, 0}, {0, 2, 0, 0}}), topology.path(256));
  for (std::uint32_t rank = 0; rank <= 256; ++rank) EXPECT_EQ(ranks_of({rank}), topology.decode(topology.path(rank)));
  path.insert(0, 33);
  EXPECT_EQ(ranks_of({33, 200}), topology.decode(path));
  path.set(0, wire::atp::Children::first(256));
  EXPECT_EQ(wire::atp::Ranks::first(256), topology.decode(path));
  path.insert(1, 1);
  EXPECT_EQ(std::nullopt, topology.decode(path));  // from two children at once
}

TEST(AtpTopology, WaysThatLeadNowhereAreRefused) {
  EXPECT_EQ("switch 0 has no path to the parameter server", check({{0}, {at_server}}));           // itself
  EXPECT_EQ("switch 1 has no path to the parameter server", check({{at_server, 2, 1}, {0}}));     // a circle
  EXPECT_EQ("switch 0 has no path to the parameter server", check({{1, 2, 1, at_server}, {3}}));  // into a circle
  EXPECT_EQ("switch 1 has no path to the parameter server", check({{at_server, 7}, {0}}));        // that does not exist
  EXPECT_EQ("rank 1 is at a switch that does not exist", check({{at_server}, {0, 1}}));
}

TEST(AtpTopology, MoreLevelsThanDirectionsHaveAreRefused) {
  TopologyConfig chain{{1, 2, at_server}, {0}};
  EXPECT_EQ("", check(chain));
  chain.parent_of_switch = {1, 2, 3, at_server};
  EXPECT_EQ("more than 3 levels of switches above a rank", check(chain));
  chain.switch_of_rank = {1};  // the lowest switch has no rank below it
  EXPECT_EQ("", check(chain));
}

// Levels were counted in eight bits: a chain of 257 switches looked like one, and its directions were written outside of
// their array.
TEST(AtpTopology, AChainOfAnyLengthIsRefused) {
  for (const std::uint32_t length : {4U, 100U, 255U, 256U, 257U, 258U, 259U, 600U}) {
    TopologyConfig chain{{}, {0}};
    for (std::uint32_t i = 1; i < length; ++i) chain.parent_of_switch.push_back(i);
    chain.parent_of_switch.push_back(at_server);
    EXPECT_EQ("more than 3 levels of switches above a rank", check(chain)) << length;
  }
}

}  // namespace
}  // namespace netsum::atp
