// Trees of switches (§3.3): who is told of which connection, and whole rings across racks in memory, with losses at each
// link.
#include "protocol/netreduce/racks.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/virtual_ring.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::testing {
namespace {

using netreduce::at_root;
using netreduce::Member;
using netreduce::Tree;
using netreduce::TunnelRing;
using netreduce::Way;

Endpoint rank_at(std::uint32_t rank) {
  return endpoint_of(static_cast<std::uint8_t>(rank + 1), 1000);
}
Endpoint switch_at(std::uint32_t a_switch) {
  return endpoint_of(static_cast<std::uint8_t>(a_switch == at_root ? 255 : 200 + a_switch), 2000);
}

TunnelRing ring_at(const Tree& tree, std::uint32_t a_switch) {
  netreduce::RingConfig config;
  config.incarnation = 0x0102030405060708;
  config.members = static_cast<std::uint32_t>(tree.switch_of_rank.size());
  std::vector<Member> members(config.members);
  for (std::uint32_t rank = 0; rank < config.members; ++rank) {
    members[rank].address = rank_at(rank).address;
    members[rank].send_qp = 2;
    members[rank].receive_qp = 3;
  }
  return netreduce::tunnel_ring(config, members, tree, a_switch, {rank_at, switch_at});
}

// "rank -> successor: way" of each line.
std::map<std::string, Way> ways(const TunnelRing& ring) {
  std::map<std::string, Way> found;
  for (const auto& line : ring.ring.lines) {
    std::string name;
    line.ranks.for_each([&](std::uint32_t rank) { name += (name.empty() ? "" : "+") + std::to_string(rank); });
    found[name] = line.way;
  }
  return found;
}

// The paper's Figure 5 and Table 3: W1, W2 at L1 and W3, W4 at L2, both below S. Here ranks count from 0.
const Tree figure5{{at_root, at_root}, {0, 0, 1, 1}};

TEST(NetreduceRacks, LeavesTranslateTheConnectionsOfTable3) {
  // L1: W1->W2 and W2->W3 are summed to L1->S; S->L1 becomes W1->W2 and W4->W1.
  const TunnelRing l1 = ring_at(figure5, 0);
  EXPECT_EQ((std::map<std::string, Way>{{"0", Way::through}, {"1", Way::leaving}, {"3", Way::arriving}}), ways(l1));
  ASSERT_TRUE(l1.ring.uplink);
  EXPECT_EQ(switch_at(at_root), l1.ring.uplink->egress);
  EXPECT_EQ(netreduce::switch_address(l1.ring.incarnation, 0), l1.ring.uplink->up.source);
  EXPECT_EQ(netreduce::switch_address(l1.ring.incarnation, at_root), l1.ring.uplink->up.destination);
  const TunnelRing l2 = ring_at(figure5, 1);
  EXPECT_EQ((std::map<std::string, Way>{{"2", Way::through}, {"3", Way::leaving}, {"1", Way::arriving}}), ways(l2));
  for (const auto& ring : {l1, l2}) EXPECT_EQ("", netreduce::check(ring.ring));
}

TEST(NetreduceRacks, TheSpineSumsItsLeavesAndHandsOnWhatIsBetweenThem) {
  const TunnelRing spine = ring_at(figure5, at_root);
  EXPECT_EQ("", netreduce::check(spine.ring));
  EXPECT_FALSE(spine.ring.uplink);
  EXPECT_EQ((std::map<std::string, Way>{{"0+1", Way::child}, {"2+3", Way::child}}), ways(spine));
  // Beside them, both directions of W2->W3 and W4->W1.
  std::map<std::pair<Endpoint, Endpoint>, int> carried;
  for (const auto& route : spine.routes) ++carried[{route.from, route.to}];
  const Endpoint l1 = switch_at(0), l2 = switch_at(1);
  EXPECT_EQ((std::map<std::pair<Endpoint, Endpoint>, int>{{{l1, l1}, 1}, {{l2, l2}, 1}, {{l1, l2}, 2}, {{l2, l1}, 2}}),
            carried);
}

TEST(NetreduceRacks, EndsOfVirtualConnectionsAgree) {
  const Tree deep{{at_root, 0, 0, at_root, 3}, {1, 1, 2, 4, 4, at_root}};
  for (std::uint32_t child = 0; child < deep.parent_of_switch.size(); ++child) {
    const TunnelRing below = ring_at(deep, child), above = ring_at(deep, deep.parent_of_switch[child]);
    const auto& lines = above.ring.lines;
    EXPECT_EQ(1, std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
                return line.way == Way::child && line.connection == below.ring.uplink->up;
              }));
  }
  // What passes a switch comes from its neighbours and goes to them.
  for (std::uint32_t a_switch = 0; a_switch < deep.parent_of_switch.size(); ++a_switch) {
    for (const auto& route : ring_at(deep, a_switch).routes) {
      EXPECT_NE(switch_at(a_switch), route.from);
      EXPECT_NE(switch_at(a_switch), route.to);
    }
  }
}

TEST(NetreduceRacks, RefusesWhatIsNoTree) {
  EXPECT_EQ("", netreduce::check(figure5));
  EXPECT_NE("", netreduce::check(Tree{{1, 0}, {0}}));
  EXPECT_NE("", netreduce::check(Tree{{0}, {0}}));
  EXPECT_NE("", netreduce::check(Tree{{7}, {0}}));
  EXPECT_NE("", netreduce::check(Tree{{at_root}, {1}}));
}

TEST(NetreduceRacks, RingsHaveSwitchesOfTheirOwn) {
  EXPECT_NE(netreduce::switch_address(1, 0), netreduce::switch_address(2, 0));
  EXPECT_NE(netreduce::switch_address(1, 0), netreduce::switch_address(1, 1));
  EXPECT_NE(netreduce::switch_address(1, 0), netreduce::switch_address(1, at_root));
}

// ---- whole rings

// What ranks of a switch add up to: their own first, each with those of switches below in the order of lowest ranks.
std::vector<float> tree_sum(const Tree& tree, std::uint32_t a_switch, const std::vector<std::vector<float>>& of_rank) {
  std::vector<std::pair<std::uint32_t, std::vector<float>>> parts;
  for (std::uint32_t rank = 0; rank < of_rank.size(); ++rank) {
    if (tree.switch_of_rank[rank] == a_switch) parts.emplace_back(rank, of_rank[rank]);
  }
  const auto lowest = [&](std::uint32_t child) {
    for (std::uint32_t rank = 0; rank < of_rank.size(); ++rank) {
      for (std::uint32_t s = tree.switch_of_rank[rank]; s != at_root; s = tree.parent_of_switch[s]) {
        if (s == child) return rank;
      }
    }
    return at_root;
  };
  for (std::uint32_t child = 0; child < tree.parent_of_switch.size(); ++child) {
    if (tree.parent_of_switch[child] == a_switch && lowest(child) != at_root) {
      parts.emplace_back(lowest(child), tree_sum(tree, child, of_rank));
    }
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<float> sum = parts.front().second;
  for (std::size_t part = 1; part < parts.size(); ++part) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += parts[part].second[i];
  }
  return sum;
}

struct Outcome {
  std::uint64_t retransmissions = 0, timeouts = 0, naks = 0;
  Duration took{};
};

template <class Prepare>
Outcome sum_over(const RingJobConfig& config, std::size_t elements, const Prepare& prepare) {
  VirtualRing ring(config);
  prepare(ring);
  std::vector<std::vector<float>> tensors(config.ranks, std::vector<float>(elements));
  for (std::uint32_t rank = 0; rank < config.ranks; ++rank) {
    for (std::size_t i = 0; i < elements; ++i) {
      tensors[rank][i] = static_cast<float>((i * 2654435761U + rank * 40503U) % 10007) * (rank % 2 == 0 ? 0x1p-12F : -1e3F);
    }
  }
  const std::vector<float> expected = tree_sum(config.tree, at_root, tensors);
  for (std::uint32_t rank = 0; rank < config.ranks; ++rank) {
    stream::Operation operation;
    operation.elements = elements;
    operation.data = tensors[rank].data();
    ring.submit(rank, operation);
  }
  EXPECT_TRUE(ring.run(1));
  Outcome outcome;
  outcome.took = ring.now.time_since_epoch();
  EXPECT_TRUE(ring.drain());
  for (std::uint32_t rank = 0; rank < config.ranks; ++rank) {
    EXPECT_EQ(expected, tensors[rank]) << "rank " << rank;
    outcome.retransmissions += ring.host(rank).sending().retransmissions;
    outcome.timeouts += ring.host(rank).sending().timeouts;
    outcome.naks += ring.host(rank).sending().naks_received;
  }
  return outcome;
}
Outcome sum_over(const RingJobConfig& config, std::size_t elements) {
  return sum_over(config, elements, [](VirtualRing&) {});
}

RingJobConfig job_in(const Tree& tree) {
  RingJobConfig config;
  config.ranks = static_cast<std::uint32_t>(tree.switch_of_rank.size());
  config.tree = tree;
  return config;
}

const std::vector<Tree>& trees() {
  static const std::vector<Tree> all{
      figure5,
      {{at_root, at_root}, {0, 1, 0, 1, 0, 1}},              // every connection crosses racks
      {{at_root, at_root}, {0, 1}},                          // two ranks, each in a rack of its own
      {{at_root}, {0, 0, 0}},                                // all below one leaf
      {{at_root}, {at_root, 0, 0, at_root}},                 // ranks at the root too
      {{at_root, 0, 1}, {2, 2, 1, 0, at_root}},              // a chain with ranks at each
      {{at_root, 0, 0, at_root, 3, 3}, {1, 1, 2, 4, 4, 5}},  // three levels
  };
  return all;
}

TEST(NetreduceRacks, SumsAcrossRacksWithoutARepeat) {
  for (std::size_t i = 0; i < trees().size(); ++i) {
    SCOPED_TRACE("tree " + std::to_string(i));
    const Outcome outcome = sum_over(job_in(trees()[i]), 5000);
    EXPECT_EQ(0U, outcome.retransmissions);
    EXPECT_EQ(0U, outcome.naks);
  }
}

TEST(NetreduceRacks, SumsAcrossRacksOverBadLinks) {
  for (std::size_t i = 0; i < trees().size(); ++i) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE("tree " + std::to_string(i) + ", seed " + std::to_string(seed));
      RingJobConfig config = job_in(trees()[i]);
      config.seed = seed;
      config.order = seed % 3 == 0 ? netreduce::Order::arrival : netreduce::Order::ring;
      config.faults.loss = 0.02;
      config.faults.duplicate = 0.02;
      config.faults.corrupt = 0.01;
      config.faults.most_delay = std::chrono::microseconds(40);
      config.faults.late = 0.001;
      config.faults.latest = std::chrono::milliseconds(300);
      static_cast<void>(sum_over(config, 6000));
    }
  }
}

// Loses one packet, the first for which `is` holds.
template <class Is>
Outcome lose_one(const Is& is) {
  bool lost = false;
  RingJobConfig config = job_in(figure5);
  config.window = 4;
  config.message_packets = 8;
  const Outcome outcome = sum_over(config, 20000, [&](VirtualRing& ring) {
    ring.network.lose = [&](const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) {
      wire::roce::Packet packet;
      EXPECT_EQ(wire::ParseError::none, wire::roce::parse(bytes, packet));
      if (lost || !is(from, to, packet)) return false;
      lost = true;
      return true;
    };
  });
  EXPECT_TRUE(lost);
  return outcome;
}

// Between switches a loss is repaired where it happened, when later totals come: no host repeats anything.
TEST(NetreduceRacks, ALostSumBetweenSwitchesIsSentAgainByTheSwitch) {
  const Endpoint leaf = VirtualRing::address_of_switch(0), spine = VirtualRing::address_of_switch(at_root);
  for (const std::uint32_t psn : {8U, 11U, 15U}) {  // the first, one in the middle and the last of message 1
    const Outcome up = lose_one([&](const Endpoint& from, const Endpoint& to, const wire::roce::Packet& packet) {
      return from == leaf && to == spine && packet.bth.destination_qp == netreduce::up_qp && packet.bth.psn == psn;
    });
    EXPECT_EQ(0U, up.retransmissions) << psn;
    const Outcome down = lose_one([&](const Endpoint& from, const Endpoint& to, const wire::roce::Packet& packet) {
      return from == spine && to == leaf && packet.bth.destination_qp == netreduce::down_qp && packet.bth.psn == psn;
    });
    EXPECT_EQ(0U, down.retransmissions) << psn;
  }
}

// A lost header is asked for by the connection's receiver, behind a result that is sent early.
TEST(NetreduceRacks, ALostHeaderMakesOneConnectionGoBackWithoutATimeOut) {
  const Endpoint spine = VirtualRing::address_of_switch(at_root), leaf = VirtualRing::address_of_switch(1);
  int seen = 0;
  const Outcome outcome = lose_one([&](const Endpoint& from, const Endpoint& to, const wire::roce::Packet& packet) {
    return from == spine && to == leaf && packet.bth.destination_qp == 1 && ++seen == 12;
  });
  EXPECT_EQ(1U, outcome.naks);
  EXPECT_EQ(0U, outcome.timeouts);
}

}  // namespace
}  // namespace netsum::testing
