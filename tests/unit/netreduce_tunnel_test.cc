// The accelerator behind UDP datagrams: whose it takes, from where, and where to.
#include "protocol/netreduce/tunnel.h"

#include <numeric>

#include "protocol/netreduce/racks.h"

#include "support/netreduce_packets.h"

namespace netsum::testing {
namespace {

using netreduce::Member;
using netreduce::Tunnel;
using wire::roce::Opcode;

struct TestRing {
  netreduce::RingConfig ring;
  std::vector<Member> members;
  std::vector<Endpoint> endpoints;
};

class NetreduceTunnel : public ::testing::Test {
 protected:
  void SetUp() override {
    ring_ = ring_of(3, 0x77, 0);
    memory_.resize(3);
    ASSERT_TRUE(add(ring_, 0));
  }

  void SetUpAgain() {
    tunnel_.remove_ring(ring_.ring.incarnation);
    ASSERT_TRUE(add(ring_, 0));
  }

  static TestRing ring_of(std::uint32_t members, std::uint64_t incarnation, std::uint32_t qp) {
    TestRing ring;
    ring.ring.incarnation = incarnation;
    ring.ring.members = members;
    ring.ring.window = 2;
    ring.ring.message_packets = 2;
    ring.ring.mtu = 256;
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      Member member;
      member.address = endpoint_of(static_cast<std::uint8_t>(rank + 1), 0).address;
      member.send_qp = qp;
      member.receive_qp = qp + 1;
      ring.members.push_back(member);
      // Where datagrams come from has nothing to do with the addresses inside them.
      ring.endpoints.push_back(endpoint_of(static_cast<std::uint8_t>(100 + rank), static_cast<std::uint16_t>(7000 + qp)));
    }
    return ring;
  }
  bool add(const TestRing& ring, std::size_t place) {
    memory_[place].resize(netreduce::Accelerator::memory_bytes(ring.ring) / sizeof(Line));
    const netreduce::Tree one_rack{{}, std::vector<std::uint32_t>(ring.members.size(), netreduce::at_root)};
    const netreduce::Places places{[&](std::uint32_t rank) { return ring.endpoints[rank]; },
                                   [](std::uint32_t) { return Endpoint{}; }};
    return tunnel_.add_ring(netreduce::tunnel_ring(ring.ring, ring.members, one_rack, netreduce::at_root, places),
                            std::as_writable_bytes(std::span(memory_[place])));
  }

  // Of a whole message of one packet.
  static Crafted packet(const TestRing& ring, std::uint32_t rank, Opcode opcode = Opcode::rc_write_only_immediate) {
    const Member &from = ring.members[rank], &to = ring.members[(rank + 1) % ring.members.size()];
    Crafted made;
    made.packet.ip.source = from.address;
    made.packet.ip.destination = to.address;
    made.packet.bth.opcode = opcode;
    made.packet.bth.destination_qp = to.receive_qp;
    made.packet.bth.psn = 5;
    made.payload.resize(44);
    wire::netreduce::InaHeader header;
    header.ring = ring.ring.ring;
    header.rank = rank;
    header.packets = 1;
    wire::netreduce::write_header(ring.ring.layout, made.payload, header);
    store_le(made.payload.data() + 40, std::bit_cast<std::uint32_t>(1.5F));
    return made;
  }
  // The answer of its successor to rank's packet.
  static Crafted answer(const TestRing& ring, std::uint32_t rank) {
    const Member &from = ring.members[rank], &to = ring.members[(rank + 1) % ring.members.size()];
    Crafted made;
    made.packet.ip.source = to.address;
    made.packet.ip.destination = from.address;
    made.packet.bth.opcode = Opcode::rc_acknowledge;
    made.packet.bth.destination_qp = from.send_qp;
    return made;
  }

  std::vector<Sent> give(const Bytes& bytes, const Endpoint& from, bool congested = false) {
    const RxView view{bytes, from, congested};
    tunnel_.on_packets({&view, 1}, {}, sink_);
    ++given_;
    return take_frames(sink_);
  }
  // Every datagram counts once.
  void TearDown() override {
    const auto& c = tunnel_.counters();
    const auto malformed = std::accumulate(std::begin(c.malformed), std::end(c.malformed), std::uint64_t{0});
    EXPECT_EQ(given_, malformed + c.unknown + c.dropped_source + c.passed + c.taken);
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  TestRing ring_;
  std::vector<std::vector<Line>> memory_;
  Tunnel tunnel_;
  RecordingSink sink_{look_for_frames};
  std::uint64_t given_ = 0;
};

TEST_F(NetreduceTunnel, ResultsGoToTheSuccessorsEndpoints) {
  EXPECT_TRUE(give(packet(ring_, 2).frame(), ring_.endpoints[2]).empty());
  EXPECT_TRUE(give(packet(ring_, 0).frame(), ring_.endpoints[0]).empty());
  const auto sent = give(packet(ring_, 1).frame(), ring_.endpoints[1]);
  ASSERT_EQ(3U, sent.size());
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ring_.endpoints[(rank + 1) % 3], sent[rank].to);
    Crafted wanted = packet(ring_, rank);
    wire::netreduce::write_seal(wanted.payload, {0x77, 0, 0, 0, 3});
    store_le(wanted.payload.data() + 40, std::bit_cast<std::uint32_t>(4.5F));
    EXPECT_EQ(wanted.frame(), sent[rank].frame);
  }
  EXPECT_EQ(3U, tunnel_.counters().taken);
}

TEST_F(NetreduceTunnel, AnswersGoBackAsTheyCame) {
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const Bytes bytes = answer(ring_, rank).frame();
    const auto sent = give(bytes, ring_.endpoints[(rank + 1) % 3]);
    ASSERT_EQ(1U, sent.size());
    EXPECT_EQ(ring_.endpoints[rank], sent[0].to);
    EXPECT_EQ(bytes, sent[0].frame);
  }
  EXPECT_EQ(3U, tunnel_.counters().passed);
}

// On its own connection, where its sender understands marks. (What is parsed has a right IPv4 checksum.)
TEST_F(NetreduceTunnel, AMarkLeavesWithTheSumOrThePacketThatPasses) {
  const auto able = [](Crafted made) {
    made.packet.ip.traffic_class = 2;
    return made;
  };
  for (const std::uint32_t last : {0U, 1U}) {
    SetUpAgain();
    give(able(packet(ring_, 1 - last)).frame(), ring_.endpoints[1 - last], last == 1);
    give(packet(ring_, 2).frame(), ring_.endpoints[2], true);
    const auto sent = give(able(packet(ring_, last)).frame(), ring_.endpoints[last], last == 0);
    ASSERT_EQ(3U, sent.size());
    EXPECT_EQ(3, sent[0].packet().ip.traffic_class);
    EXPECT_EQ(2, sent[1].packet().ip.traffic_class);
    EXPECT_EQ(0, sent[2].packet().ip.traffic_class);
  }
  const auto passed = give(able(answer(ring_, 0)).frame(), ring_.endpoints[1], true);
  ASSERT_EQ(1U, passed.size());
  EXPECT_EQ(3, passed[0].packet().ip.traffic_class);
}

TEST_F(NetreduceTunnel, WhatIsNoGradientPassesOnTheSameWay) {
  for (const Opcode opcode : {Opcode::rc_read_request, Opcode::congestion_notification}) {
    Crafted other = packet(ring_, 0, opcode);
    if (!wire::roce::shape_of(opcode).payload) other.payload.clear();
    const auto sent = give(other.frame(), ring_.endpoints[0]);
    ASSERT_EQ(1U, sent.size());
    EXPECT_EQ(ring_.endpoints[1], sent[0].to);
    EXPECT_EQ(other.frame(), sent[0].frame);
  }
  // Also with an ICRC that is wrong: whoever gets it checks it.
  Bytes damaged = answer(ring_, 0).frame();
  damaged.back() ^= std::byte{1};
  const auto sent = give(damaged, ring_.endpoints[1]);
  ASSERT_EQ(1U, sent.size());
  EXPECT_EQ(damaged, sent[0].frame);
}

TEST_F(NetreduceTunnel, TakesAConnectionsPacketsFromItsHostAlone) {
  give(packet(ring_, 1).frame(), ring_.endpoints[1]);
  give(packet(ring_, 2).frame(), ring_.endpoints[2]);
  std::uint64_t dropped = 0;
  for (const Endpoint& stranger :
       {ring_.endpoints[1], ring_.endpoints[2], endpoint_of(100, 7001), endpoint_of(9, 7000), Endpoint{}}) {
    EXPECT_TRUE(give(packet(ring_, 0).frame(), stranger).empty());
    EXPECT_EQ(++dropped, tunnel_.counters().dropped_source);
  }
  EXPECT_TRUE(give(answer(ring_, 0).frame(), ring_.endpoints[0]).empty());
  EXPECT_TRUE(give(answer(ring_, 0).frame(), ring_.endpoints[2]).empty());
  EXPECT_EQ(dropped + 2, tunnel_.counters().dropped_source);
  EXPECT_EQ(2U, tunnel_.accelerator().ring_counters(0x77)->packets);
  EXPECT_EQ(3U, give(packet(ring_, 0).frame(), ring_.endpoints[0]).size());
}

TEST_F(NetreduceTunnel, CarriesNoConnectionThatWasNotRegistered) {
  const auto unknown = [&](const Crafted& made, const Endpoint& from) {
    const std::uint64_t before = tunnel_.counters().unknown;
    EXPECT_TRUE(give(made.frame(), from).empty());
    EXPECT_EQ(before + 1, tunnel_.counters().unknown);
  };
  Crafted other = packet(ring_, 0);
  other.packet.bth.destination_qp = 9;
  unknown(other, ring_.endpoints[0]);
  other = packet(ring_, 0);
  other.packet.ip.destination = ring_.members[2].address;  // not the successor
  unknown(other, ring_.endpoints[0]);
  other = packet(ring_, 0);
  other.packet.ip.source[15] = 77;
  unknown(other, ring_.endpoints[0]);
  other = answer(ring_, 0);
  other.packet.bth.destination_qp = 8;
  unknown(other, ring_.endpoints[1]);
}

TEST_F(NetreduceTunnel, CountsWhatItCannotReadByReason) {
  const Bytes whole = packet(ring_, 0).frame();
  const auto& malformed = tunnel_.counters().malformed;
  EXPECT_TRUE(give({}, ring_.endpoints[0]).empty());
  for (const std::size_t size : {std::size_t{1}, std::size_t{19}, std::size_t{39}, whole.size() - 1}) {
    EXPECT_TRUE(give(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)), ring_.endpoints[0]).empty());
  }
  EXPECT_EQ(5U, malformed[static_cast<std::size_t>(wire::ParseError::truncated)]);
  Bytes wrong = whole;
  wrong[12] ^= std::byte{1};  // the IPv4 header's checksum does not fit
  EXPECT_TRUE(give(wrong, ring_.endpoints[0]).empty());
  EXPECT_EQ(1U, malformed[static_cast<std::size_t>(wire::ParseError::checksum)]);
}

TEST_F(NetreduceTunnel, CarriesSeveralRingsOfTheSameHosts) {
  const TestRing second = ring_of(2, 0x78, 2);
  ASSERT_TRUE(add(second, 1));
  for (const std::uint32_t rank : {0U, 1U}) {
    EXPECT_TRUE(give(packet(ring_, rank).frame(), ring_.endpoints[rank]).empty());
    const auto sent = give(packet(second, rank).frame(), second.endpoints[rank]);
    EXPECT_EQ(rank == 0 ? 0U : 2U, sent.size());
  }
  // One ring's endpoint is none of the other's.
  EXPECT_TRUE(give(packet(second, 0).frame(), ring_.endpoints[0]).empty());
  EXPECT_EQ(1U, tunnel_.counters().dropped_source);
  EXPECT_EQ(3U, give(packet(ring_, 2).frame(), ring_.endpoints[2]).size());
  give(packet(second, 0).frame(), second.endpoints[0]);
  tunnel_.remove_ring(0x78);  // just after a packet of that connection
  EXPECT_TRUE(give(packet(second, 0).frame(), second.endpoints[0]).empty());
  EXPECT_TRUE(give(answer(second, 0).frame(), second.endpoints[1]).empty());
  EXPECT_EQ(2U, tunnel_.counters().unknown);
  EXPECT_EQ(1U, give(answer(ring_, 0).frame(), ring_.endpoints[1]).size());
}

TEST_F(NetreduceTunnel, OneBatchMayHoldPacketsOfAll) {
  std::vector<Bytes> frames;
  std::vector<RxView> views;
  for (std::uint32_t rank = 0; rank < 3; ++rank) frames.push_back(packet(ring_, rank).frame());
  frames.push_back(answer(ring_, 0).frame());
  for (std::uint32_t i = 0; i < 4; ++i) views.push_back({frames[i], ring_.endpoints[i < 3 ? i : 1]});
  tunnel_.on_packets(views, {}, sink_);
  given_ += 4;
  EXPECT_EQ(4U, take_frames(sink_).size());
}

TEST_F(NetreduceTunnel, RefusesRingsThatCannotBeToldApart) {
  EXPECT_FALSE(add(ring_of(3, 0x78, 0), 1)) << "the same connections";
  EXPECT_FALSE(add(ring_of(3, 0x77, 8), 1)) << "the same incarnation";
  TestRing answers = ring_of(3, 0x78, 8);
  for (Member& member : answers.members) member.send_qp = 0;
  EXPECT_FALSE(add(answers, 1)) << "other gradients, the same answers";
  TestRing twice = ring_of(3, 0x79, 8);
  twice.members[1] = twice.members[0];
  EXPECT_TRUE(add(twice, 1)) << "a host may be two ranks";
  TestRing same = ring_of(2, 0x7a, 16);
  same.members[1].receive_qp = same.members[1].send_qp;  // gradients to it, and answers: one connection
  EXPECT_FALSE(add(same, 2));
  // What was refused left nothing behind.
  EXPECT_TRUE(give(packet(ring_of(2, 0x7a, 16), 0).frame(), same.endpoints[0]).empty());
  EXPECT_EQ(1U, tunnel_.counters().unknown);
  EXPECT_EQ(1U, give(answer(ring_, 0).frame(), ring_.endpoints[1]).size());
}

// A job may come again with the queue pairs of one that ended.
TEST_F(NetreduceTunnel, ConnectionsOfARingThatEndedMayBeRegisteredAgain) {
  give(packet(ring_, 0).frame(), ring_.endpoints[0]);
  tunnel_.remove_ring(0x77);
  const TestRing again = ring_of(3, 0x80, 0);
  ASSERT_TRUE(add(again, 1));
  for (const std::uint32_t rank : {1U, 2U}) EXPECT_TRUE(give(packet(again, rank).frame(), again.endpoints[rank]).empty());
  EXPECT_EQ(3U, give(packet(again, 0).frame(), again.endpoints[0]).size());
}

}  // namespace
}  // namespace netsum::testing
