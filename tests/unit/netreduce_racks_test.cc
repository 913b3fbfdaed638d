// Trees of switches (§3.3): who is told of which connection, and whole rings across racks in memory, with losses at each
// link.
#include "protocol/netreduce/racks.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "support/netreduce_packets.h"
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
Endpoint switch_at(std::uint32_t switch_id) {
  return endpoint_of(static_cast<std::uint8_t>(switch_id == at_root ? 255 : 200 + switch_id), 2000);
}

TunnelRing ring_at(const Tree& tree, std::uint32_t switch_id) {
  netreduce::RingConfig config;
  config.incarnation = 0x0102030405060708;
  config.members = static_cast<std::uint32_t>(tree.switch_of_rank.size());
  std::vector<Member> members(config.members);
  for (std::uint32_t rank = 0; rank < config.members; ++rank) {
    members[rank].address = rank_at(rank).address;
    members[rank].send_qp = 2;
    members[rank].receive_qp = 3;
  }
  return netreduce::tunnel_ring(config, members, tree, switch_id, {rank_at, switch_at});
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
  for (std::uint32_t switch_id = 0; switch_id < deep.parent_of_switch.size(); ++switch_id) {
    for (const auto& route : ring_at(deep, switch_id).routes) {
      EXPECT_NE(switch_at(switch_id), route.from);
      EXPECT_NE(switch_at(switch_id), route.to);
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
std::vector<float> tree_sum(const Tree& tree, std::uint32_t switch_id, const std::vector<std::vector<float>>& of_rank) {
  std::vector<std::pair<std::uint32_t, std::vector<float>>> parts;
  for (std::uint32_t rank = 0; rank < of_rank.size(); ++rank) {
    if (tree.switch_of_rank[rank] == switch_id) parts.emplace_back(rank, of_rank[rank]);
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
    if (tree.parent_of_switch[child] == switch_id && lowest(child) != at_root) {
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
  outcome.took = ring.network.now.time_since_epoch();
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
      config.selective = seed % 2 == 0;
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

// ---- what comes from above

// A leaf of two ranks, W1->W2 and W2->W1, below a spine, with packets of one element each.
class NetreduceLeaf : public ::testing::Test {
 protected:
  void SetUp() override {
    const Tree tree{{at_root, at_root}, {0, 0, 1}};
    netreduce::RingConfig config;
    config.incarnation = 77;
    config.members = 3;
    config.message_packets = 2;
    config.mtu = 256;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      members_.push_back({rank_at(rank).address, 2, 0, 3, 0, 0});
    }
    ring_ = netreduce::tunnel_ring(config, members_, tree, 0, {rank_at, switch_at});
    memory_.resize(netreduce::Accelerator::memory_bytes(ring_.ring) / sizeof(Line));
    ASSERT_TRUE(tunnel_.add_ring(ring_, std::as_writable_bytes(std::span(memory_))));
  }

  // What it sends after a packet, from whom it comes.
  std::vector<Sent> give(const Crafted& packet, const Endpoint& from, bool congested = false) {
    const Bytes bytes = packet.frame();
    const RxView view{bytes, from, congested};
    tunnel_.on_packets({&view, 1}, {}, sink_);
    tunnel_.accelerator().check();
    return take_frames(sink_);
  }

  static void put(Crafted& packet, float value) {
    packet.payload.resize(44);
    store_le(packet.payload.data() + 40, std::bit_cast<std::uint32_t>(value));
  }
  static float value_in(const Sent& sent) {
    return std::bit_cast<float>(load_le<std::uint32_t>(sent.packet().payload.data() + 40));
  }

  // A rank's message of one packet.
  [[nodiscard]] Crafted gradient(std::uint32_t rank, float value) const {
    const Member &from = members_[rank], &to = members_[(rank + 1) % 3];
    Crafted made;
    made.packet.ip.source = from.address;
    made.packet.ip.destination = to.address;
    made.packet.bth.opcode = wire::roce::Opcode::rc_write_only_immediate;
    made.packet.bth.destination_qp = to.receive_qp;
    made.packet.bth.psn = 100 * rank;
    made.packet.bth.ack_request = true;
    made.packet.reth = {0x1000 + rank, 7, 44};
    made.packet.immediate = 0xabcd;
    put(made, value);
    wire::netreduce::InaHeader header;
    header.rank = rank;
    header.packets = 1;
    wire::netreduce::write_header(ring_.ring.layout, made.payload, header);
    return made;
  }
  // The same without its values, as another leaf sends it on.
  [[nodiscard]] Crafted header(std::uint32_t rank) const {
    Crafted made = gradient(rank, 0);
    made.payload.resize(40);
    return made;
  }
  [[nodiscard]] Crafted total(float value, std::uint64_t incarnation = 77, std::uint32_t contributions = 3) const {
    Crafted made = gradient(0, value);
    const auto down = ring_.ring.uplink->down();
    made.packet.ip.v6 = true;
    made.packet.ip.source = down.source;
    made.packet.ip.destination = down.destination;
    made.packet.bth.destination_qp = down.destination_qp;
    made.packet.bth.psn = 0;
    wire::netreduce::write_seal(made.payload, {incarnation, 0, 0, 0, contributions});
    return made;
  }
  [[nodiscard]] const netreduce::RingCounters& counters() const { return *tunnel_.accelerator().ring_counters(77); }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Member> members_;
  TunnelRing ring_;
  std::vector<Line> memory_;
  netreduce::Tunnel tunnel_;
  RecordingSink sink_{look_for_frames};
};

TEST_F(NetreduceLeaf, SendsItsSumUpAndHeadersOnAndTheTotalWithTheHeadersThatItHas) {
  EXPECT_TRUE(give(gradient(0, 1), rank_at(0)).empty());
  // Rank 1's successor is elsewhere: its header goes there at once, the sum of both goes up.
  const auto sent = give(gradient(1, 2), rank_at(1));
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(switch_at(at_root), sent[0].to);
  EXPECT_EQ(header(1).frame(), sent[0].frame);
  EXPECT_EQ(switch_at(at_root), sent[1].to);
  EXPECT_EQ(netreduce::up_qp, sent[1].packet().bth.destination_qp);
  EXPECT_EQ(0U, sent[1].packet().bth.psn) << "of the place in the stream, not of a rank";
  EXPECT_EQ(3.0F, value_in(sent[1]));
  EXPECT_EQ(0U, wire::netreduce::read_seal(sent[1].packet().payload)) << "no sum of all";
  EXPECT_TRUE(wire::roce::icrc_valid(sent[1].frame));

  // The total leaves on rank 0's connection at once, and on that of rank 2, to rank 0, when its header comes.
  const auto results = give(total(10), switch_at(at_root));
  ASSERT_EQ(1U, results.size());
  Crafted expected = gradient(0, 10);
  wire::netreduce::write_seal(expected.payload, {77, 0, 0, 0, 3});
  EXPECT_EQ(expected.frame(), results[0].frame);
  EXPECT_EQ(rank_at(1), results[0].to);
  const auto later = give(header(2), switch_at(at_root));
  ASSERT_EQ(1U, later.size());
  expected = gradient(2, 10);
  wire::netreduce::write_seal(expected.payload, {77, 0, 0, 0, 3});
  EXPECT_EQ(expected.frame(), later[0].frame) << "as rank 2 sent it, but for sum and seal";
  EXPECT_EQ(rank_at(0), later[0].to);
  // Repeats are answered where they come from: rank 1's goes on as a header.
  ASSERT_EQ(1U, give(gradient(0, 1), rank_at(0)).size());
  ASSERT_EQ(1U, give(header(2), switch_at(at_root)).size());
  const auto header_again = give(gradient(1, 2), rank_at(1));
  ASSERT_EQ(1U, header_again.size());
  EXPECT_EQ(header(1).frame(), header_again[0].frame);
  EXPECT_EQ(1U, counters().sent_up);
}

// A rank's mark goes where its own sum or header goes, and not up with those of others; the total's is everybody's.
TEST_F(NetreduceLeaf, MarksGoWhereTheirPacketsGo) {
  const auto able = [](Crafted made) {
    made.packet.ip.traffic_class = 2;
    return made;
  };
  EXPECT_TRUE(give(able(gradient(0, 1)), rank_at(0), true).empty());
  const auto sent = give(able(gradient(1, 2)), rank_at(1), true);
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(3, sent[0].packet().ip.traffic_class) << "rank 1's header";
  EXPECT_EQ(2, sent[1].packet().ip.traffic_class) << "the sum";
  tunnel_.remove_ring(77);
  ASSERT_TRUE(tunnel_.add_ring(ring_, std::as_writable_bytes(std::span(memory_))));
  give(able(gradient(0, 1)), rank_at(0));
  give(able(gradient(1, 2)), rank_at(1));
  give(able(header(2)), switch_at(at_root));
  const auto results = give(able(total(10)), switch_at(at_root), true);
  ASSERT_EQ(2U, results.size());
  for (const Sent& result : results) EXPECT_EQ(3, result.packet().ip.traffic_class);
}

TEST_F(NetreduceLeaf, RepeatsFetchATotalThatWasLost) {
  static_cast<void>(give(gradient(0, 1), rank_at(0)));
  static_cast<void>(give(gradient(1, 2), rank_at(1)));
  const auto up = give(gradient(0, 1), rank_at(0));
  ASSERT_EQ(1U, up.size());
  EXPECT_EQ(3.0F, value_in(up[0]));
  static_cast<void>(give(header(2), switch_at(at_root)));
  EXPECT_EQ(1U, give(header(2), switch_at(at_root)).size()) << "a rank elsewhere waits for its successor here";
  EXPECT_EQ(2U, counters().repeats_waiting);
}

TEST_F(NetreduceLeaf, TakesNoTotalButThisRingsOfAllRanks) {
  static_cast<void>(give(gradient(0, 1), rank_at(0)));
  EXPECT_TRUE(give(total(10), switch_at(at_root)).empty()) << "of which this switch's part cannot be";
  static_cast<void>(give(gradient(1, 2), rank_at(1)));
  EXPECT_TRUE(give(total(10, 78), switch_at(at_root)).empty()) << "another life's";
  EXPECT_TRUE(give(total(10, 77, 2), switch_at(at_root)).empty()) << "without a rank";
  Crafted raw = total(10);
  wire::netreduce::write_seal(std::span(raw.payload), {77, 0, 1, 0, 3});
  EXPECT_TRUE(give(raw, switch_at(at_root)).empty()) << "another message's";
  EXPECT_EQ(4U, counters().dropped_misplaced);
  Crafted longer = total(10);
  longer.payload.resize(48);
  EXPECT_TRUE(give(longer, switch_at(at_root)).empty());
  EXPECT_EQ(1U, counters().dropped_shape);
  Bytes damaged = total(10).frame();
  damaged[damaged.size() - 6] ^= std::byte{1};
  const RxView view{damaged, switch_at(at_root)};
  tunnel_.on_packets({&view, 1}, {}, sink_);
  EXPECT_TRUE(take_frames(sink_).empty());
  EXPECT_EQ(1U, counters().dropped_icrc);
  EXPECT_TRUE(give(total(10), rank_at(0)).empty()) << "not from above";
  EXPECT_EQ(1U, tunnel_.counters().dropped_source);
  EXPECT_EQ(1U, give(total(10), switch_at(at_root)).size());
  EXPECT_TRUE(give(total(11), switch_at(at_root)).empty());
  EXPECT_EQ(1U, counters().totals_repeated);
}

TEST_F(NetreduceLeaf, AHeaderThatComesWithValuesWasLetPass) {
  EXPECT_TRUE(give(gradient(2, 5), switch_at(at_root)).empty());
  EXPECT_EQ(1U, counters().dropped_raw);
}

// Loses one packet, the first for which `is` holds.
template <class Is>
Outcome lose_one(Is is, bool selective = false) {
  bool lost = false;
  RingJobConfig config = job_in(figure5);
  config.selective = selective;
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

// Single repeats: each switch asks for what it misses itself, be it a packet or the header of one.
TEST(NetreduceRacks, ALossCostsItsOwnRepeatAndNoTimeOut) {
  const Endpoint leaf = VirtualRing::address_of_switch(0), other_leaf = VirtualRing::address_of_switch(1),
                 spine = VirtualRing::address_of_switch(at_root);
  const auto nth = [](const Endpoint& from_whom, const Endpoint& to_whom, std::uint32_t qp, int number) {
    return [=, seen = 0](const Endpoint& from, const Endpoint& to, const wire::roce::Packet& packet) mutable {
      return from == from_whom && to == to_whom && packet.bth.destination_qp == qp && ++seen == number;
    };
  };
  constexpr std::uint32_t data = 1;  // to a rank's queue pair
  const auto rank = [](std::uint32_t number) { return VirtualRing::address_of_host(number); };
  struct Case {
    const char* what;
    Endpoint from, to;
    std::uint32_t qp;
    std::uint64_t repeats;  // the most, of hosts
  };
  for (const Case& lost :
       {Case{"a packet to a neighbour in the rack", rank(0), leaf, data, 1},
        Case{"a packet to another rack, which both racks miss", rank(1), leaf, data, 2},
        Case{"its header", spine, other_leaf, data, 1}, Case{"a result in the rack", leaf, rank(1), data, 0},
        Case{"a result from another rack", other_leaf, rank(2), data, 0},
        Case{"a rack's sum", leaf, spine, netreduce::up_qp, 0}, Case{"a total", spine, leaf, netreduce::down_qp, 0}}) {
    for (const int number : {1, 12, 16}) {
      SCOPED_TRACE(std::string(lost.what) + ", number " + std::to_string(number));
      const Outcome outcome = lose_one(nth(lost.from, lost.to, lost.qp, number), true);
      // Without a message's first packet nobody can place the others.
      EXPECT_LE(outcome.retransmissions, lost.repeats * (number == 1 ? 8 : 1));
      EXPECT_EQ(0U, outcome.timeouts);
      EXPECT_EQ(0U, outcome.naks);
    }
  }
}

}  // namespace
}  // namespace netsum::testing
