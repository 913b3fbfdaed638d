// The accelerator with hand-made packets: which connections are whose, several rings, and rings of hosts that register
// nothing.
#include <algorithm>
#include <utility>

#include "support/netreduce_ring.h"
#include "wire/netreduce.h"

namespace netsum::testing {
namespace {

using netreduce::Accelerator;
using netreduce::Connection;
using netreduce::RingConfig;
using namespace std::chrono_literals;

class NetreduceRings : public OneRing {
 protected:
  [[nodiscard]] std::uint64_t dropped_known() const { return bump_->accelerator.counters().dropped_known; }
  [[nodiscard]] std::uint64_t passed() const { return bump_->accelerator.counters().passed; }

  static Verdict give_to(Bump& bump, const RingHosts& hosts, const At& at) {
    return bump.give(hosts.gradient(at.rank, at.message, at.packet), hosts.egress[at.rank]);
  }
  static void expect_result(const Sent& sent, const RingHosts& hosts, const At& at) {
    EXPECT_EQ(hosts.egress[at.rank], sent.to);
    EXPECT_EQ(hosts.result(at.rank, at.message, at.packet).frame(), sent.frame);
  }
};

// ---- connections that are known, and no more

// A gradient that passes as it is would be taken for a sum.
TEST_F(NetreduceRings, WhatIsOnItsWayWhenARingEndsDoesNotPass) {
  start(2);
  give(At{0, 0, 0});
  bump_->accelerator.remove_ring(hosts_->config.incarnation);
  EXPECT_EQ(nullptr, bump_->accelerator.ring_counters(hosts_->config.incarnation));
  give_all(0, 0);
  give_all(0, 1);
  give_all(7, 0);
  expect_nothing();
  EXPECT_EQ(6U, dropped_known());
  EXPECT_EQ(0U, passed());
  Crafted ack = hosts_->gradient(0, 0, 0);
  ack.packet.bth.opcode = wire::roce::Opcode::rc_acknowledge;
  ack.payload.clear();
  EXPECT_EQ(Verdict::pass, give(ack, 0));
  bump_->accelerator.remove_ring(hosts_->config.incarnation);  // once more: nothing
}

TEST_F(NetreduceRings, WhatIsOnItsWayWhenAnAcceleratorRestartsDoesNotPass) {
  start(3);
  give_message(0);
  const std::vector<Connection> known = bump_->accelerator.known();
  std::vector<Connection> expected = hosts_->connections;
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(expected, known);

  bump_ = std::make_unique<Bump>();
  for (const Connection& connection : known) bump_->accelerator.know(connection, bump_->now);
  give_all(0, 1);
  give_all(1, 0);
  expect_nothing();
  EXPECT_EQ(6U, dropped_known());
  EXPECT_EQ(0U, passed());
  EXPECT_EQ(known, bump_->accelerator.known());
}

TEST_F(NetreduceRings, ForgetsWhoWasSilentAndHasNoRing) {
  start(2);
  RingHosts others(ring_of(2), 50);
  for (const Connection& connection : others.connections) bump_->accelerator.know(connection, Time(10s));
  bump_->now = Time(20s);
  EXPECT_EQ(Verdict::taken, give_to(*bump_, others, {1, 0, 1}));
  bump_->accelerator.forget(Time(10s));
  EXPECT_EQ(4U, bump_->accelerator.known().size());
  bump_->accelerator.forget(Time(20s));
  EXPECT_EQ(3U, bump_->accelerator.known().size());
  EXPECT_EQ(Verdict::pass, give_to(*bump_, others, {0, 0, 1}));
  EXPECT_EQ(Verdict::taken, give_to(*bump_, others, {1, 0, 1}));
  bump_->accelerator.forget(Time(20s) + 1ns);
  EXPECT_EQ(Verdict::pass, give_to(*bump_, others, {1, 0, 1}));
  // A ring's own stay, however silent it is.
  bump_->accelerator.forget(never);
  give(At{0, 0, 0});
  EXPECT_EQ(1U, counters().contributions);
  EXPECT_EQ(2U, bump_->accelerator.known().size());
}

TEST_F(NetreduceRings, ToKnowAConnectionOfARingChangesNothing) {
  start(2);
  for (const Connection& connection : hosts_->connections) bump_->accelerator.know(connection, Time(5s));
  give_all(0, 0);
  expect_results(of_all(0, 0));
}

TEST_F(NetreduceRings, ARingMayTakeConnectionsThatAreKnown) {
  start(2);
  give(At{0, 0, 0});
  bump_->accelerator.remove_ring(hosts_->config.incarnation);
  RingConfig next = ring_of(2);
  next.incarnation = 99;
  RingHosts again(next);
  ASSERT_TRUE(bump_->accelerator.add_ring(again.config, again.memory()));
  EXPECT_EQ(Verdict::taken, give_to(*bump_, again, {1, 0, 0}));
  EXPECT_TRUE(bump_->take().empty()) << "what rank 0 sent belonged to the former ring";
  EXPECT_EQ(Verdict::taken, give_to(*bump_, again, {0, 0, 0}));
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(2U, sent.size());
  expect_result(sent[0], again, {0, 0, 0});
  expect_result(sent[1], again, {1, 0, 0});
}

TEST_F(NetreduceRings, RefusesARingWhoseIncarnationOrConnectionIsInUse) {
  start(2);
  RingHosts others(ring_of(2), 50);
  EXPECT_FALSE(bump_->accelerator.add_ring(others.config, others.memory())) << "the incarnation";
  others.config.incarnation = 5;
  others.config.connections[1] = hosts_->connections[0];
  EXPECT_FALSE(bump_->accelerator.add_ring(others.config, others.memory())) << "rank 1's connection";
  others.config.connections[1] = others.config.connections[0];
  EXPECT_FALSE(bump_->accelerator.add_ring(others.config, others.memory())) << "two ranks with one connection";
  EXPECT_EQ(2U, bump_->accelerator.known().size()) << "and left nothing behind";
  others.config.connections = others.connections;
  EXPECT_TRUE(bump_->accelerator.add_ring(others.config, others.memory()));
  give_all(0, 0);
  expect_results(of_all(0, 0));
}

// ---- several rings

TEST_F(NetreduceRings, AreApart) {
  start(2);
  RingConfig same = ring_of(2);  // the same RingID, at the same hosts, with other queue pairs
  same.incarnation = 2;
  RingHosts second(same, 1, 18);
  RingConfig elsewhere = ring_of(4);  // equal queue pair numbers, at other hosts
  elsewhere.incarnation = 3;
  elsewhere.mtu = 1024;
  elsewhere.message_packets = 2;
  RingHosts third(elsewhere, 50, 17);
  for (RingHosts* hosts : {&second, &third}) {
    ASSERT_TRUE(bump_->accelerator.add_ring(hosts->config, hosts->memory()));
  }
  const RingHosts* const all[] = {hosts_.get(), &second, &third};
  // Turn by turn, so that no two packets of a connection follow each other.
  for (std::uint64_t message = 0; message < 5; ++message) {
    for (std::uint32_t packet = 0; packet < 3; ++packet) {
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        for (const RingHosts* hosts : all) {
          if (rank >= hosts->config.members || packet >= hosts->config.message_packets) continue;
          EXPECT_EQ(Verdict::taken, give_to(*bump_, *hosts, {rank, message, packet}));
          const std::vector<Sent> sent = bump_->take();
          if (rank + 1 < hosts->config.members) {
            EXPECT_TRUE(sent.empty());
            continue;
          }
          ASSERT_EQ(hosts->config.members, sent.size());
          for (std::uint32_t to = 0; to <= rank; ++to) expect_result(sent[to], *hosts, {to, message, packet});
        }
      }
    }
  }
  for (const RingHosts* hosts : all) {
    const auto* const c = bump_->accelerator.ring_counters(hosts->config.incarnation);
    ASSERT_NE(nullptr, c);
    EXPECT_EQ(c->packets, c->contributions);
    EXPECT_EQ(5U * hosts->config.message_packets, c->sums);
  }
  // One ends; the others go on.
  bump_->accelerator.remove_ring(2);
  EXPECT_EQ(Verdict::taken, give_to(*bump_, second, {0, 0, 0}));
  EXPECT_EQ(1U, dropped_known());
  give_all(5, 0);
  expect_results(of_all(5, 0));
}

TEST_F(NetreduceRings, AnAcceleratorCanBeMoved) {
  start(2);
  give(At{0, 0, 0});
  Bump moved;
  moved.accelerator = std::move(bump_->accelerator);
  EXPECT_EQ(Verdict::taken, give_to(moved, *hosts_, {0, 0, 0}));
  EXPECT_EQ(Verdict::taken, give_to(moved, *hosts_, {1, 0, 0}));
  EXPECT_EQ(2U, moved.take().size());
}

TEST_F(NetreduceRings, KnowNothingOfRingsThatAreNot) {
  start(2);
  EXPECT_EQ(nullptr, bump_->accelerator.ring_counters(1));
  EXPECT_FALSE(bump_->accelerator.mismatch(1).has_value());
  EXPECT_FALSE(bump_->accelerator.stall(1).has_value());
}

// ---- rings of foreign hosts, which show who they are

class NetreduceLearnedRings : public NetreduceRings {
 protected:
  static RingConfig nrtv_ring(std::uint32_t members) {
    RingConfig config = ring_of(members);
    config.layout = wire::netreduce::nrtv_layout;
    return config;
  }
  // The accelerator is told nothing of the connections.
  void start_learning(const RingConfig& config) {
    hosts_ = std::make_unique<RingHosts>(config);
    bump_ = std::make_unique<Bump>();
    RingConfig ring = hosts_->config;
    ring.connections.clear();
    ASSERT_EQ("", netreduce::check(ring));
    ASSERT_TRUE(bump_->accelerator.add_ring(ring, hosts_->memory()));
  }
};

TEST_F(NetreduceLearnedRings, AreLearnedFromFirstPackets) {
  start_learning(nrtv_ring(3));
  EXPECT_TRUE(bump_->accelerator.known().empty());
  give(At{1, 0, 0});
  EXPECT_EQ(std::vector{hosts_->connections[1]}, bump_->accelerator.known());
  // Until its first packet was seen, a connection is nobody's.
  EXPECT_EQ(Verdict::pass, give(hosts_->gradient(0, 0, 1), 0));
  give(At{1, 0, 1});
  give(At{0, 0, 0});
  give(At{2, 0, 0});
  expect_results(of_all(0, 0));
  for (std::uint64_t message = 0; message < 6; ++message) give_message(message);
  EXPECT_EQ(18U, counters().sums);
}

TEST_F(NetreduceLearnedRings, LearnOnlyFromWhatIsWholeAndTheirs) {
  start_learning(nrtv_ring(3));
  Bytes damaged = hosts_->gradient(0, 0, 0).frame();
  damaged[damaged.size() - 10] ^= std::byte{1};
  EXPECT_EQ(Verdict::pass, bump_->give(damaged, hosts_->egress[0]));
  const auto change = [&](auto what) {
    Crafted packet = hosts_->gradient(0, 0, 0);
    wire::netreduce::InaHeader header = hosts_->header(0, 0);
    what(header);
    wire::netreduce::write_header(hosts_->config.layout, packet.payload, header);
    EXPECT_EQ(Verdict::pass, give(packet, 0));
  };
  change([](auto& header) { header.ring = 4; });
  change([](auto& header) { header.rank = 3; });
  Crafted other = hosts_->gradient(0, 0, 0);
  other.payload[1] ^= std::byte{1};
  EXPECT_EQ(Verdict::pass, give(other, 0)) << "another magic";
  EXPECT_TRUE(bump_->accelerator.known().empty());
  EXPECT_EQ(0U, counters().packets);
}

// A ring's stream begins with message 0. What comes in the middle of one is a gradient all the same, which must not pass.
TEST_F(NetreduceLearnedRings, AStreamWhoseBeginningWasNotSeenIsDropped) {
  start_learning(nrtv_ring(2));
  give(At{0, 1, 0});
  give(At{0, 1, 1});
  give(At{0, 2, 0});
  EXPECT_EQ(3U, dropped_known());
  EXPECT_EQ(0U, counters().packets);
  EXPECT_EQ(1U, bump_->accelerator.known().size());
  // When message 0 comes, they are a ring's.
  give_message(0);
  give_message(1);
  EXPECT_EQ(6U, counters().sums);
}

TEST_F(NetreduceLearnedRings, AMemberThatComesAgainWithAnotherConnectionBeginsAnew) {
  start_learning(nrtv_ring(3));
  for (std::uint64_t message = 0; message < 5; ++message) give_message(message);
  give_all(5, 0);
  drop_sent();
  const std::uint64_t before = counters().sums;
  RingHosts again(nrtv_ring(3), 1, 90);  // the same hosts, with other queue pairs
  EXPECT_EQ(Verdict::taken, give_to(*bump_, again, {1, 0, 0}));
  EXPECT_TRUE(bump_->take().empty());
  // What is left of the former connections is dropped.
  give(At{0, 5, 1});
  give(At{1, 5, 1});
  give(At{2, 6, 0});
  EXPECT_EQ(3U, dropped_known());
  EXPECT_EQ(Verdict::taken, give_to(*bump_, again, {0, 0, 0}));
  EXPECT_EQ(Verdict::taken, give_to(*bump_, again, {2, 0, 0}));
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(3U, sent.size());
  for (std::uint32_t rank = 0; rank < 3; ++rank) expect_result(sent[rank], again, {rank, 0, 0});
  EXPECT_EQ(before + 1, counters().sums) << "counters go on";
}

TEST_F(NetreduceLearnedRings, ARepeatOfMessage0BeginsNothing) {
  start_learning(nrtv_ring(2));
  give_message(0);
  give_message(1);
  drop_sent();
  give(At{0, 0, 0});
  expect_results({At{0, 0, 0}});
  give_message(2);
  EXPECT_EQ(9U, counters().sums);
}

TEST_F(NetreduceLearnedRings, SeveralAreToldApartByTheirId) {
  start_learning(nrtv_ring(2));
  RingConfig config = nrtv_ring(2);
  config.incarnation = 7;
  config.ring = 4;
  RingHosts others(config, 1, 60);
  config.connections.clear();
  ASSERT_TRUE(bump_->accelerator.add_ring(config, others.memory()));
  for (const std::uint32_t rank : {0U, 1U}) {
    give(At{rank, 0, 0});
    EXPECT_EQ(Verdict::taken, give_to(*bump_, others, {rank, 0, 0}));
  }
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(4U, sent.size());
  expect_result(sent[0], *hosts_, {0, 0, 0});
  expect_result(sent[2], others, {0, 0, 0});
}

TEST_F(NetreduceLearnedRings, ConnectionsOfARingThatEndedAreTheNextOnes) {
  start_learning(nrtv_ring(2));
  give_message(0);
  bump_->accelerator.remove_ring(hosts_->config.incarnation);
  give_all(1, 0);
  EXPECT_EQ(2U, dropped_known());
  drop_sent();
  RingConfig config = hosts_->config;
  config.connections.clear();
  config.incarnation = 8;
  ASSERT_TRUE(bump_->accelerator.add_ring(config, hosts_->memory()));
  give_all(1, 1);
  EXPECT_EQ(4U, dropped_known());
  give_all(0, 0);
  expect_results(of_all(0, 0));
}

}  // namespace
}  // namespace netsum::testing
