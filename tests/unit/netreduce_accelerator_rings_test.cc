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
  for (const Connection& connection : known) bump_->accelerator.know({connection, {}}, bump_->now);
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
  for (const Connection& connection : others.connections) bump_->accelerator.know({connection, {}}, Time(10s));
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
  for (const Connection& connection : hosts_->connections) bump_->accelerator.know({connection, {}}, Time(5s));
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

// A rank has gone behind a rack's switch, and drawn a queue pair number that it had at this one.
TEST_F(NetreduceRings, AConnectionThatWasSummedMayPassInTheNextRing) {
  start(2);
  give(At{0, 0, 0});
  bump_->accelerator.remove_ring(hosts_->config.incarnation);
  RingHosts next(ring_of(2), 50);
  next.config.incarnation = 99;
  next.config.passing = {hosts_->connections[0]};
  ASSERT_TRUE(bump_->accelerator.add_ring(next.config, next.memory()));
  EXPECT_EQ(Verdict::pass, give_to(*bump_, *hosts_, {0, 0, 0}));
  EXPECT_EQ(Verdict::taken, give_to(*bump_, *hosts_, {1, 0, 0})) << "of the ring that has ended";
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
  // The accelerator is told nothing of the connections, but who the hosts are.
  void start_learning(const RingConfig& config, bool record = false) {
    hosts_ = std::make_unique<RingHosts>(config);
    bump_ = std::make_unique<Bump>();
    RingConfig ring = hosts_->config;
    ring.connections.clear();
    ASSERT_EQ("", netreduce::check(ring));
    ASSERT_TRUE(bump_->accelerator.add_ring(ring, hosts_->memory()));
    netreduce::LearningConfig learning;
    for (std::uint8_t host = 1; host <= 3; ++host) learning.hosts.push_back(endpoint_of(host, 0).address);
    learning.record = record;
    bump_->accelerator.learn(learning);
  }
  // The same hosts with a job of their own: another PSN to begin with, and other queue pairs if not said otherwise.
  [[nodiscard]] RingHosts again(std::uint32_t qp = 90) const {
    RingConfig config = hosts_->config;
    config.connections.clear();
    RingHosts made(config, 1, qp);
    for (std::uint32_t& psn : made.first_psns) psn = (psn + 7'000'000) & wire::roce::psn_mask;
    return made;
  }
  void later(Duration silence = Accelerator::restart_after) { bump_->now += silence; }
  Verdict give_of(const RingHosts& hosts, const At& at) { return give_to(*bump_, hosts, at); }
  void expect_sums(const RingHosts& hosts, std::uint64_t message) {
    drop_sent();
    for (std::uint32_t packet = 0; packet < hosts.config.message_packets; ++packet) {
      for (std::uint32_t rank = 0; rank < hosts.config.members; ++rank) {
        EXPECT_EQ(Verdict::taken, give_of(hosts, {rank, message, packet}));
      }
      const std::vector<Sent> sent = bump_->take();
      ASSERT_EQ(hosts.config.members, sent.size());
      for (std::uint32_t rank = 0; rank < hosts.config.members; ++rank)
        expect_result(sent[rank], hosts, {rank, message, packet});
    }
  }
  [[nodiscard]] std::uint64_t misfit(netreduce::Misfit kind) const {
    return bump_->accelerator.counters().dropped_misfit[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::uint64_t dropped_restart() const { return bump_->accelerator.counters().dropped_restart; }
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

TEST_F(NetreduceLearnedRings, WhatHasAMarkAndFitsNoRingIsDroppedAndSaysWhy) {
  using netreduce::Misfit;
  start_learning(nrtv_ring(3));
  Bytes damaged = hosts_->gradient(0, 0, 0).frame();
  damaged[damaged.size() - 10] ^= std::byte{1};
  EXPECT_EQ(Verdict::taken, bump_->give(damaged, hosts_->egress[0]));
  EXPECT_EQ(1U, bump_->accelerator.counters().dropped_damaged);
  const auto expect = [&](Misfit kind, auto what) {
    Crafted packet = hosts_->gradient(0, 0, 0);
    wire::netreduce::InaHeader header = hosts_->header(0, 0);
    what(packet, header);
    const std::uint64_t before = misfit(kind);
    if (packet.payload.size() >= hosts_->config.layout.header_bytes && kind != Misfit::layout) {
      wire::netreduce::write_header(hosts_->config.layout, packet.payload, header);
    }
    EXPECT_EQ(Verdict::taken, give(packet, 0));
    EXPECT_EQ(before + 1, misfit(kind)) << static_cast<int>(kind);
    EXPECT_EQ(packet.packet.ip.source, bump_->accelerator.example(kind).connection.source);
  };
  expect(Misfit::ring, [](auto&, auto& header) { header.ring = 4; });
  EXPECT_EQ(4U, bump_->accelerator.example(Misfit::ring).header.ring);
  expect(Misfit::rank, [](auto&, auto& header) { header.rank = 3; });
  EXPECT_EQ(3U, bump_->accelerator.example(Misfit::rank).header.rank);
  expect(Misfit::beginning, [](auto&, auto& header) { header.message = 1; });
  expect(Misfit::header, [](Crafted& packet, auto&) { packet.payload.resize(12); });
  expect(Misfit::host, [](Crafted& packet, auto&) { packet.packet.ip.source = endpoint_of(99, 0).address; });
  expect(Misfit::host, [](Crafted& packet, auto&) { packet.packet.ip.destination = endpoint_of(99, 0).address; });
  expect(Misfit::service, [](Crafted& packet, auto&) { packet.packet.bth.opcode = wire::roce::Opcode::uc_write_first; });
  expect(Misfit::layout, [&](Crafted& packet, auto& header) {
    packet.payload.resize(wire::netreduce::netsum_layout.header_bytes);
    wire::netreduce::write_header(wire::netreduce::netsum_layout, packet.payload, header);
  });
  EXPECT_TRUE(bump_->accelerator.known().empty());
  EXPECT_EQ(0U, counters().packets);
  EXPECT_EQ(0U, passed());
  Crafted other = hosts_->gradient(0, 0, 0);
  other.payload[1] ^= std::byte{1};
  EXPECT_EQ(Verdict::pass, give(other, 0)) << "no mark";
  EXPECT_EQ(1U, bump_->accelerator.counters().unmarked);
}

// A ring of three whose --ring says two: two of them would get sums that lack the third.
TEST_F(NetreduceLearnedRings, ARingThatDoesNotCloseIsNotSummed) {
  start_learning(nrtv_ring(3));
  RingConfig two = nrtv_ring(2);
  two.incarnation = 99;
  ASSERT_TRUE(bump_->accelerator.add_ring(two, hosts_->memory()));  // its memory is not reached
  bump_->accelerator.remove_ring(hosts_->config.incarnation);
  for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Verdict::taken, give(hosts_->gradient(rank, 0, 0), rank));
  expect_nothing();
  EXPECT_EQ(1U, misfit(netreduce::Misfit::open));
  EXPECT_EQ(1U, misfit(netreduce::Misfit::rank));
}

// A ring's stream begins with message 0. What comes in the middle of one is a gradient all the same, which must not pass.
TEST_F(NetreduceLearnedRings, AStreamWhoseBeginningWasNotSeenDoesNotBegin) {
  start_learning(nrtv_ring(2));
  give(At{0, 1, 0});
  give(At{0, 2, 0});
  EXPECT_EQ(2U, misfit(netreduce::Misfit::beginning));
  EXPECT_EQ(0U, counters().packets);
  EXPECT_TRUE(bump_->accelerator.known().empty()) << "what a stranger could fill it with";
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
  const RingHosts next = again();
  std::vector<netreduce::ConnectionChange> changes;
  bump_->accelerator.on_change([&](const auto& change) { changes.push_back(change); });
  later();
  EXPECT_EQ(Verdict::taken, give_of(next, {1, 0, 0}));
  EXPECT_TRUE(bump_->take().empty());
  ASSERT_EQ(1U, changes.size());
  EXPECT_EQ(netreduce::ConnectionChange::Kind::restarted, changes[0].kind);
  EXPECT_EQ(1U, changes[0].rank);
  EXPECT_EQ(next.connections[1], changes[0].known.connection);
  EXPECT_EQ(next.first_psns[1], changes[0].known.first_psn);
  // What is left of the former connections is dropped; a repeat of their message 0 begins nothing.
  give(At{0, 5, 1});
  give(At{1, 5, 1});
  give(At{2, 6, 0});
  for (std::uint32_t rank = 0; rank < 3; ++rank) give(At{rank, 0, 0});
  EXPECT_EQ(6U, dropped_known());
  EXPECT_EQ(RankSet::first(2).minus(RankSet::first(1)), bump_->accelerator.bound(hosts_->config.incarnation));
  EXPECT_EQ(Verdict::taken, give_of(next, {0, 0, 0}));
  EXPECT_EQ(Verdict::taken, give_of(next, {2, 0, 0}));
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(3U, sent.size());
  for (std::uint32_t rank = 0; rank < 3; ++rank) expect_result(sent[rank], next, {rank, 0, 0});
  EXPECT_EQ(before + 1, counters().sums) << "counters go on";
  // Nor do those when the new ones are silent.
  later(10s);
  give_all(0, 0);
  expect_nothing();
  for (std::uint32_t packet = 1; packet < 3; ++packet) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(Verdict::taken, give_of(next, {rank, 0, packet}));
  }
  expect_sums(next, 1);
}

// One packet that says message 0, from whomever, ends nothing that is alive.
TEST_F(NetreduceLearnedRings, AForgedMessage0ResetsNoRing) {
  start_learning(nrtv_ring(3));
  give_message(0);
  give_all(1, 0);
  give(At{1, 1, 1});
  drop_sent();
  const Bytes state = bump_->state();
  RingHosts strangers = again();
  strangers.connections[1].source = endpoint_of(99, 0).address;
  later();
  EXPECT_EQ(Verdict::taken, give_of(strangers, {1, 0, 0})) << "no host";
  give(At{1, 1, 1});
  EXPECT_EQ(Verdict::taken, give_of(again(), {1, 0, 0})) << "with a host's address, while that host is heard";
  EXPECT_EQ(Verdict::taken, give_of(again(17), {1, 0, 0})) << "and on the host's own connection";
  EXPECT_EQ(2U, dropped_restart());
  EXPECT_EQ(state, bump_->state());
  for (const std::uint32_t rank : {0U, 2U}) give(At{rank, 1, 1});
  expect_results(of_all(1, 1));
}

// Queue pair numbers come again when a host was started again; the PSN tells.
TEST_F(NetreduceLearnedRings, AConnectionOfTheSameNumberIsAnotherOneIfItBeginsElsewhere) {
  start_learning(nrtv_ring(3));
  for (std::uint64_t message = 0; message < 20; ++message) give_message(message);
  const RingHosts next = again(17);
  later();
  expect_sums(next, 0);
  expect_sums(next, 1);
  EXPECT_EQ(0U, dropped_restart());
  // And of one that has no ring any more.
  later();
  expect_sums(again(90), 0);
  later();
  RingHosts third = again(17);
  for (std::uint32_t& psn : third.first_psns) psn += 12345;
  expect_sums(third, 0);
}

// Before any sum has left, hosts repeat their message 0; they need not come again because another one has.
TEST_F(NetreduceLearnedRings, AMemberThatComesAgainBeforeAnySumLeavesTheOthers) {
  start_learning(nrtv_ring(3));
  give(At{0, 0, 0});
  give(At{1, 0, 0});
  give(At{0, 0, 1});
  later();
  const RingHosts next = again();
  EXPECT_EQ(Verdict::taken, give_of(next, {1, 0, 0}));
  give(At{0, 0, 0});
  give(At{2, 0, 0});
  const std::vector<Sent> sent = bump_->take();
  ASSERT_EQ(3U, sent.size());
  expect_result(sent[0], *hosts_, {0, 0, 0});
  expect_result(sent[1], next, {1, 0, 0});
}

TEST_F(NetreduceLearnedRings, MessageNumbersThatComeRoundBeginNothing) {
  RingConfig config = nrtv_ring(2);
  config.layout = wire::netreduce::parse_layout("magic=4e527476@0,ring=4:2,rank=6:2,message=8:1,header=16");
  start_learning(config);
  for (std::uint64_t message = 0; message < 600; ++message) {
    give_message(message);
    drop_sent();
    if (message % 100 == 0) later();
  }
  EXPECT_EQ(1800U, counters().sums);
}

// ---- messages on gradient connections that are no gradients

TEST_F(NetreduceLearnedRings, OtherMessagesOfAGradientConnectionPass) {
  using wire::roce::Opcode;
  start_learning(nrtv_ring(2));
  give_message(0);
  drop_sent();
  // Rank 0 has others between its gradients, and its PSNs go on.
  const auto other = [&](Opcode opcode, std::uint32_t psn, std::size_t bytes, std::uint32_t length = 0) {
    Crafted made = hosts_->gradient(0, 0, 1);
    made.packet.bth.opcode = opcode;
    made.packet.bth.psn = psn & wire::roce::psn_mask;
    made.packet.reth.length = length;
    made.payload.assign(bytes, std::byte{0x5a});
    return made;
  };
  const std::uint32_t at = hosts_->psn_of(0, 1, 0);
  EXPECT_EQ(Verdict::pass, give(other(Opcode::rc_write_first, at, 256, 600), 0));
  EXPECT_EQ(Verdict::pass, give(other(Opcode::rc_write_last, at + 2, 88), 0)) << "its middle was lost";
  EXPECT_EQ(Verdict::pass, give(other(Opcode::rc_write_middle, at + 1, 256), 0));
  EXPECT_EQ(Verdict::pass, give(other(Opcode::rc_send_first, at + 3, 256), 0));
  EXPECT_EQ(Verdict::taken, give(other(Opcode::rc_send_last, at + 5, 40), 0)) << "who knows what that is";
  EXPECT_EQ(Verdict::pass, give(other(Opcode::rc_send_middle, at + 4, 256), 0));
  EXPECT_EQ(Verdict::pass, give(other(Opcode::rc_send_last, at + 5, 40), 0));
  EXPECT_EQ(Verdict::taken, give(other(Opcode::rc_send_middle, at + 6, 256), 0)) << "it has ended";
  Bytes damaged = other(Opcode::rc_send_only, at + 6, 16).frame();
  damaged.back() ^= std::byte{1};
  EXPECT_EQ(Verdict::taken, bump_->give(damaged, hosts_->egress[0])) << "its mark may be what was damaged";
  // One that says it is longer than it is ends where a gradient begins.
  EXPECT_EQ(Verdict::pass, give(other(Opcode::rc_write_first, at + 6, 256, 1U << 20), 0));
  hosts_->first_psns[0] += 7;
  for (std::uint64_t message = 1; message < 4; ++message) {
    for (std::uint32_t packet = 0; packet < 3; ++packet) {
      give_all(message, packet);
      expect_results(of_all(message, packet));
    }
  }
  // The first ones once more, as after go-back-N.
  EXPECT_EQ(Verdict::pass, give(other(Opcode::rc_write_middle, at + 1, 256), 0));
  EXPECT_EQ(8U, bump_->accelerator.counters().passed_other);
}

// A queue pair's number that is known from a ring, and is something else's by now.
TEST_F(NetreduceLearnedRings, AnotherUseOfAKnownNumberPassesAndIsForgotten) {
  using wire::roce::Opcode;
  start_learning(nrtv_ring(2));
  give_message(0);
  later();
  for (std::uint32_t rank = 0; rank < 2; ++rank) EXPECT_EQ(Verdict::taken, give_of(again(), {rank, 0, 0}));
  drop_sent();
  EXPECT_EQ(4U, bump_->accelerator.known().size());
  Crafted send = hosts_->gradient(0, 1, 0);
  send.packet.bth.opcode = Opcode::rc_send_only;
  send.payload.assign(64, std::byte{1});
  EXPECT_EQ(Verdict::pass, give(send, 0)) << "may be its own, of the former life";
  EXPECT_EQ(4U, bump_->accelerator.known().size());
  give(At{0, 0, 2});
  send.packet.bth.psn = (send.packet.bth.psn + 0x700000) & wire::roce::psn_mask;
  EXPECT_EQ(Verdict::pass, give(send, 0));
  EXPECT_EQ(3U, bump_->accelerator.known().size());
  send.packet.bth.opcode = Opcode::rc_send_middle;
  EXPECT_EQ(Verdict::pass, give(send, 0));
}

// What it knows of former rings is bounded, whoever comes and goes.
TEST_F(NetreduceLearnedRings, ManyRestartsAreNotRememberedForEver) {
  start_learning(nrtv_ring(2));
  for (std::uint32_t life = 0; life < 3000; ++life) {
    const RingHosts next = again(100 + life);
    for (std::uint32_t rank = 0; rank < 2; ++rank) EXPECT_EQ(Verdict::taken, give_of(next, {rank, 0, 0}));
    drop_sent();
    later();
    if (life % 300 == 0) {
      ASSERT_LE(bump_->accelerator.known().size(), Accelerator::most_past + 2);
    }
  }
  EXPECT_LE(bump_->accelerator.known().size(), Accelerator::most_past + 2);
  EXPECT_EQ(6000U, counters().contributions);
}

TEST_F(NetreduceRings, ManyJobsAreNotRememberedForEver) {
  start(2);
  std::size_t forgotten = 0;
  bump_->accelerator.on_change([&](const auto& change) {
    EXPECT_EQ(netreduce::ConnectionChange::Kind::forgotten, change.kind);
    ++forgotten;
  });
  for (std::uint32_t job = 0; job < 3000; ++job) {
    RingConfig config = ring_of(2);
    config.incarnation = job;
    const RingHosts hosts(config, 1, 100 + job);
    ASSERT_TRUE(bump_->accelerator.add_ring(hosts.config, hosts_->memory()));
    bump_->accelerator.remove_ring(job);
  }
  EXPECT_LE(bump_->accelerator.known().size(), Accelerator::most_past + 2);
  EXPECT_EQ(6002U, forgotten + bump_->accelerator.known().size());
  EXPECT_TRUE(bump_->accelerator.may_be_gradient(hosts_->connections[0], {})) << "a ring's own stay";
}

// ---- nothing that cannot be taken back leaves before it is written down whose it is

TEST_F(NetreduceLearnedRings, SumsWaitUntilTheirConnectionIsWrittenDown) {
  for (const netreduce::Order order : {netreduce::Order::ring, netreduce::Order::arrival}) {
    RingConfig config = nrtv_ring(2);
    config.order = order;
    start_learning(config, true);
    give_message(0);
    give_all(1, 0);
    give_all(1, 2);
    give_all(1, 2);
    expect_nothing();
    EXPECT_EQ(2U, counters().repeats_held);
    EXPECT_EQ(5U, counters().sums);
    bump_->recorded(hosts_->connections[1]);
    std::vector<At> left = {{1, 0, 0}, {1, 0, 1}, {1, 0, 2}, {1, 1, 0}, {1, 1, 2}};
    if (order == netreduce::Order::ring) left.push_back(left.back());  // the last one early, for its gap, and so twice
    expect_results(left);
    bump_->recorded(hosts_->connections[1]);
    expect_nothing();
    bump_->recorded(hosts_->connections[0]);
    EXPECT_EQ(left.size(), bump_->take().size());
    give_all(1, 1);
    EXPECT_EQ(order == netreduce::Order::ring ? 4U : 2U, bump_->take().size());
    give_message(2);
    EXPECT_EQ(6U, bump_->take().size());
    bump_->recorded({});  // of nobody
  }
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
  give_all(0, 0);
  EXPECT_EQ(6U, dropped_known()) << "they begin elsewhere, and not with a repeat";
  expect_nothing();
  expect_sums(again(17), 0);
}

}  // namespace
}  // namespace netsum::testing
