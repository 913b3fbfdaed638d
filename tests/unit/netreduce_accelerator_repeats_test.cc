// The accelerator with hand-made packets: repeats, in which order sums leave, and when buffers change hands.
#include <algorithm>
#include <string>

#include "support/netreduce_ring.h"
#include "wire/netreduce.h"

namespace netsum::testing {
namespace {

using netreduce::Order;

class NetreduceRepeats : public OneRing {
 protected:
  static netreduce::RingConfig ring_with(std::uint32_t members, Order order) {
    netreduce::RingConfig config = ring_of(members);
    config.order = order;
    return config;
  }
  // A repeat as soft-RoCE sends it: another IP identification, and asking for an ACK.
  [[nodiscard]] static Crafted repeated(Crafted packet) {
    packet.packet.ip.identification ^= 0x5a5a;
    packet.packet.bth.ack_request = true;
    return packet;
  }
};

TEST_F(NetreduceRepeats, WhileASumIsIncompleteNothingIsSent) {
  for (const Order order : {Order::ring, Order::arrival}) {
    start(ring_with(3, order));
    give(At{0, 0, 0});
    give(At{1, 0, 0});
    const Bytes before = bump_->state();
    for (int i = 0; i < 5; ++i) {
      give(At{0, 0, 0});
      give(repeated(hosts_->gradient(1, 0, 0)), 1);
    }
    expect_nothing();
    EXPECT_EQ(10U, counters().repeats_waiting);
    EXPECT_EQ(before, bump_->state());
    give(At{2, 0, 0});
    expect_results(of_all(0, 0));
  }
}

TEST_F(NetreduceRepeats, AreAnsweredOnTheirOwnConnectionWithTheSameBits) {
  for (const Order order : {Order::ring, Order::arrival}) {
    start(ring_with(3, order));
    give_message(0);
    give_all(1, 0);
    drop_sent();
    const Bytes before = bump_->state();
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      for (std::uint32_t packet = 0; packet < 3; ++packet) {
        give(repeated(hosts_->gradient(rank, 0, packet)), rank);
        const std::vector<Sent> sent = bump_->take();
        ASSERT_EQ(1U, sent.size());
        EXPECT_EQ(hosts_->egress[rank], sent[0].to);
        EXPECT_EQ(repeated(hosts_->result(rank, 0, packet)).frame(), sent[0].frame) << "with the repeat's own headers";
      }
    }
    EXPECT_EQ(9U, counters().repeats_answered);
    EXPECT_EQ(4U, counters().sums);
    EXPECT_EQ(before, bump_->state());
  }
}

// Buffered, not accumulated: a repeat with other values changes nothing. (A correct host repeats what it sent.)
TEST_F(NetreduceRepeats, ChangeNoSum) {
  start(3);
  const auto lie = [&] {
    Crafted other = hosts_->gradient(1, 0, 0);
    for (std::size_t i = 40; i < other.payload.size(); ++i) other.payload[i] = std::byte{0x42};
    return other;
  };
  give(At{1, 0, 0});
  give(lie(), 1);
  give_all(0, 0, 1);
  expect_results(of_all(0, 0));
  give(lie(), 1);
  expect_results({At{1, 0, 0}});
}

// The frame goes where the newest packet of the connection came towards.
TEST_F(NetreduceRepeats, AResultFollowsTheNewestPacket) {
  start(2);
  give(At{0, 0, 0});
  const Endpoint moved = endpoint_of(77, 0);
  hosts_->egress[0] = moved;
  give(At{0, 0, 0});
  give(At{1, 0, 0});
  expect_results(of_all(0, 0));
}

TEST_F(NetreduceRepeats, ASumThatWaitsForItsTurnIsSentOnce) {
  start(ring_with(2, Order::ring));
  give(At{1, 0, 0});
  give(At{1, 0, 1});
  give(At{0, 0, 0});
  drop_sent();
  give(At{1, 0, 2});
  give(At{0, 0, 2});  // complete, but 0, 1 lacks rank 0
  drop_sent();        // early, on the connection with the gap
  EXPECT_EQ(1U, counters().early);
  give(At{0, 0, 2});
  give(repeated(hosts_->gradient(1, 0, 2)), 1);
  expect_nothing();
  EXPECT_EQ(2U, counters().repeats_held);
  give(At{0, 0, 1});
  expect_results(of_all({{0, 1}, {0, 2}}));
}

// ---- order; what a repair hangs on is sent twice

TEST_F(NetreduceRepeats, ResultsLeaveInTheOrderOfPacketNumbers) {
  start(ring_with(3, Order::ring));
  // Rank 2 lost two packets on its way here.
  for (const std::uint32_t packet : {0U, 1U, 2U}) give_all(0, packet, 2);
  give_all(1, 0, 2);
  give(At{2, 0, 0});
  expect_results(of_all(0, 0));
  give(At{2, 0, 2});
  expect_results({At{2, 0, 2}, At{2, 0, 2}});  // behind the gap, so that its receiver asks for the packet
  give(At{2, 1, 0});
  expect_nothing();  // once a gap
  EXPECT_EQ(1U, counters().early);
  give(At{2, 0, 1});
  expect_results(of_all({{0, 1}, {0, 2}, {1, 0}}));
  // Another gap, another question; and only who has a gap is told.
  for (const std::uint32_t rank : {0U, 1U}) give(At{rank, 1, 1});
  for (const std::uint32_t rank : {0U, 1U, 2U}) give(At{rank, 1, 2});
  expect_results({At{2, 1, 2}, At{2, 1, 2}});
  EXPECT_EQ(2U, counters().early);
}

TEST_F(NetreduceRepeats, EveryConnectionWithAGapIsAskedOnce) {
  start(ring_with(3, Order::ring));
  give_all(0, 0, 0);
  give(At{0, 0, 0});
  drop_sent();
  give(At{1, 0, 1});  // ranks 0 and 2 lost theirs
  give_all(0, 2);
  expect_results({At{0, 0, 2}, At{0, 0, 2}, At{2, 0, 2}, At{2, 0, 2}});
  give_all(1, 0);
  expect_nothing();
  give(At{0, 0, 1});
  expect_nothing();
  give_all(1, 1);
  expect_nothing();  // rank 0 has no gap any more, and rank 2 was asked
  EXPECT_EQ(2U, counters().early);
  give(At{2, 0, 1});
  EXPECT_EQ(12U, bump_->take().size());
}

TEST_F(NetreduceRepeats, AnEarlyResultIsTheResult) {
  start(ring_with(2, Order::ring));
  give(At{0, 0, 0});
  give(At{1, 0, 0});
  drop_sent();
  give(At{1, 0, 1});
  give(At{1, 0, 2});
  give(At{0, 0, 2});
  const std::vector<Sent> early = bump_->take();
  ASSERT_EQ(2U, early.size());
  EXPECT_EQ(early[0].frame, early[1].frame);
  give(At{0, 0, 1});
  const std::vector<Sent> later = bump_->take();
  ASSERT_EQ(4U, later.size());
  EXPECT_EQ(early[0].frame, later[1].frame);
}

TEST_F(NetreduceRepeats, AsInThePaperSumsLeaveAtOnce) {
  start(ring_with(3, Order::arrival));
  give_all(0, 0);
  expect_results(of_all(0, 0));
  give_all(0, 1, 2);
  give_all(0, 2);
  expect_results(of_all(0, 2));
  give_all(1, 0);
  expect_results(of_all(1, 0));
  give(At{0, 0, 2});
  expect_results({At{0, 0, 2}});  // repeats too
  give(At{2, 0, 1});
  expect_results(of_all(0, 1));
  EXPECT_EQ(0U, counters().early);
  EXPECT_EQ(0U, counters().repeats_held);
}

// ---- NAKs of receivers that go back

class NetreduceNaks : public NetreduceRepeats {
 protected:
  void start(std::uint32_t members, Order order = Order::ring) {
    hosts_ = std::make_unique<RingHosts>(ring_with(members, order));
    hosts_->name_answers();
    ASSERT_EQ("", netreduce::check(hosts_->config));
    bump_ = std::make_unique<Bump>();
    ASSERT_TRUE(bump_->accelerator.add_ring(hosts_->config, hosts_->memory()));
  }
  // Of the receiver of that rank's packets.
  Verdict nak(const At& at) { return bump_->give(hosts_->nak(at.rank, at.message, at.packet), endpoint_of(99, 0)); }
  // It passed as it came, and twice.
  void expect_passed(const At& at) {
    const std::vector<Sent> copies = bump_->take();
    ASSERT_EQ(2U, copies.size());
    for (const Sent& copy : copies) {
      EXPECT_EQ(hosts_->nak(at.rank, at.message, at.packet).frame(), copy.frame);
      EXPECT_EQ(endpoint_of(99, 0), copy.to);
    }
  }
};

TEST_F(NetreduceNaks, AreAnsweredWithAllThatHasLeftFromThereOn) {
  start(3);
  give_message(0);
  give_message(1);
  give_all(2, 0);
  give(At{1, 2, 1});
  drop_sent();
  EXPECT_EQ(Verdict::taken, nak({1, 0, 2}));
  expect_results({At{1, 0, 2}, At{1, 0, 2}, At{1, 1, 0}, At{1, 1, 1}, At{1, 1, 2}, At{1, 2, 0}});
  EXPECT_EQ(Verdict::taken, nak({2, 2, 0}));
  expect_results({At{2, 2, 0}, At{2, 2, 0}});
  EXPECT_EQ(2U, counters().naks_answered);
  EXPECT_EQ(6U, counters().asked_for);
  give_all(2, 1, 1);
  expect_results(of_all(2, 1));  // and the rest as ever
}

TEST_F(NetreduceNaks, PassIfWhatTheyNameHasNotLeft) {
  start(3);
  give_all(0, 0);
  give(At{0, 0, 1});
  give_all(0, 2, 1);
  drop_sent();
  const Bytes before = bump_->state();
  for (const At& at : {At{0, 0, 1}, At{1, 0, 1}, At{1, 3, 1}}) {  // other ranks lack it; it is lost; nothing is known of it
    EXPECT_EQ(Verdict::taken, nak(at));
    expect_passed(at);
  }
  EXPECT_EQ(3U, counters().naks_passed);
  Crafted other = hosts_->nak(0, 0, 0);
  ++other.packet.bth.destination_qp;
  EXPECT_EQ(Verdict::pass, bump_->give(other, endpoint_of(99, 0))) << "another connection's";
  Crafted ack = hosts_->nak(0, 0, 0);
  ack.packet.aeth.syndrome = wire::roce::Aeth::ack;
  EXPECT_EQ(Verdict::pass, bump_->give(ack, endpoint_of(99, 0)));
  Bytes damaged = hosts_->nak(0, 0, 0).frame();
  damaged.back() ^= std::byte{1};
  EXPECT_EQ(Verdict::taken, bump_->give(damaged, endpoint_of(99, 0)));
  EXPECT_EQ(1U, counters().dropped_icrc);
  Crafted request = hosts_->nak(0, 0, 0);
  request.packet.aeth = {wire::roce::Aeth::repeat_request, 1};
  EXPECT_EQ(Verdict::pass, bump_->give(request, endpoint_of(99, 0))) << "these hosts do not know it";
  expect_nothing();
  EXPECT_EQ(before, bump_->state());
  EXPECT_EQ(Verdict::taken, nak({0, 0, 0}));
  EXPECT_EQ(Verdict::pass, bump_->give(hosts_->nak(0, 0, 1), Endpoint{})) << "nobody knows the way";
  EXPECT_EQ(2U, bump_->take().size()) << "the answer";
  start(3, Order::arrival);
  give_message(0);
  drop_sent();
  EXPECT_EQ(Verdict::pass, nak({0, 0, 0})) << "as in the paper";
  expect_nothing();
}

TEST_F(NetreduceNaks, PassIfBuffersWereTaken) {
  start(2);
  for (std::uint64_t message = 0; message < 5; ++message) give_message(message);
  drop_sent();
  EXPECT_EQ(Verdict::taken, nak({0, 0, 2}));
  expect_passed({0, 0, 2});
  EXPECT_EQ(Verdict::taken, nak({0, 1, 0}));
  EXPECT_EQ(13U, bump_->take().size());
}

// A sender goes back for one packet, and repeats all that it has sent since. What left only now is on its way, and if the
// last of it is lost, nothing behind it would tell its receiver.
TEST_F(NetreduceNaks, RepeatsOfSumsThatLeftAfterTheSenderWentBackAreIgnored) {
  start(2);
  give(At{1, 0, 0});
  give(At{1, 0, 1});
  give(At{1, 0, 2});
  give(At{1, 1, 0});
  give(At{0, 0, 0});
  drop_sent();
  give(At{0, 0, 2});
  expect_results({At{0, 0, 2}, At{0, 0, 2}});  // early
  EXPECT_EQ(Verdict::taken, nak({0, 0, 1}));
  expect_passed({0, 0, 1});
  give(At{0, 1, 0});
  give(At{0, 0, 1});
  expect_results(of_all({{0, 1}, {0, 2}, {1, 0}}));
  give(At{0, 0, 2});
  expect_nothing();
  EXPECT_EQ(1U, counters().repeats_ignored);
  give(At{0, 1, 0});
  expect_results({At{0, 1, 0}});  // the last
  // It goes back once more, as after a time-out.
  give(At{0, 0, 1});
  give(At{0, 0, 2});
  expect_results({At{0, 0, 1}, At{0, 0, 2}});
  give(At{0, 0, 2});
  expect_results({At{0, 0, 2}});  // the same packet, and again
  EXPECT_EQ(4U, counters().repeats_answered);
}

// Two packets of a window are lost. The sender, which is asked for the first, repeats both. It is asked for the second once
// its repeats have come past that.
TEST_F(NetreduceNaks, NothingIsAskedForWhileItsRepeatIsOnItsWay) {
  for (const bool again : {false, true}) {
    start(2);
    give_all(0, 0);
    drop_sent();
    for (const auto& [message, packet] : {std::pair{0U, 2U}, {1U, 0U}, {1U, 2U}}) give(At{0, message, packet});
    give(At{1, 0, 1});
    give(At{1, 0, 2});
    expect_results({At{0, 0, 2}, At{0, 0, 2}});  // early: rank 0's packets 0, 1 and 1, 1 are lost
    give(At{1, 1, 0});
    give(At{1, 1, 1});
    give(At{0, 0, 1});
    expect_results(of_all({{0, 1}, {0, 2}, {1, 0}}));
    give(At{1, 1, 2});
    give(At{0, 0, 2});
    expect_nothing();
    give(At{0, 1, 0});
    expect_results({At{0, 1, 0}});  // the last that left
    if (again) {
      give(At{0, 1, 2});
      give_all(2, 0);
      expect_results({At{0, 1, 2}, At{0, 1, 2}});
    } else {
      give(At{0, 1, 1});
      expect_results(of_all({{1, 1}, {1, 2}}));
    }
    EXPECT_EQ(again ? 2U : 1U, counters().early);
  }
}

TEST_F(NetreduceNaks, ThatAreAnsweredDoNotHideAGapOfTheSenders) {
  start(2);
  give_all(0, 0);
  give(At{1, 0, 1});
  drop_sent();
  give_all(0, 2);
  expect_results({At{0, 0, 2}, At{0, 0, 2}});  // early: 0, 1 of rank 0 is lost, and the sum of 0, 0 too
  EXPECT_EQ(Verdict::taken, nak({0, 0, 0}));
  expect_results({At{0, 0, 0}, At{0, 0, 0}, At{0, 0, 2}, At{0, 0, 2}});
  EXPECT_EQ(Verdict::taken, nak({0, 0, 1}));
  expect_passed({0, 0, 1});
}

// ---- when buffers change hands

TEST_F(NetreduceRepeats, AMessageTakesTheBuffersOfTheOneTwoWindowsEarlier) {
  for (const Order order : {Order::ring, Order::arrival}) {
    start(ring_with(2, order));
    for (std::uint64_t message = 0; message < 12; ++message) {
      give_message(message);
      EXPECT_EQ(6U, bump_->take().size());
      // Those of one window are still there; so are those of two, until somebody is two windows on.
      for (std::uint64_t old = message >= 3 ? message - 3 : 0; old <= message; ++old) {
        give(At{0, old, 0});
        give(At{1, old, 2});
        expect_results({At{0, old, 0}, At{1, old, 2}});
      }
      if (message < 4) continue;
      give(At{0, message - 4, 0});
      give(At{0, message - 4, 1});
    }
    expect_nothing();
    EXPECT_EQ(8U, counters().dropped_old);
    EXPECT_EQ(8U, counters().dropped_unplaced);
    EXPECT_EQ(36U, counters().sums);
  }
}

TEST_F(NetreduceRepeats, NothingTakesBuffersThatAreInUse) {
  for (const Order order : {Order::ring, Order::arrival}) {
    start(ring_with(2, order));
    for (std::uint64_t message = 0; message < 4; ++message) {
      for (std::uint32_t packet = 0; packet < 3; ++packet) give(At{0, message, packet});
    }
    const Bytes before = bump_->state();
    give(At{0, 4, 0});  // two windows ahead of message 0, which rank 1 has not sent
    give(At{0, 4, 1});
    give(At{0, 5, 0});
    EXPECT_EQ(2U, counters().dropped_early);
    EXPECT_EQ(1U, counters().dropped_unplaced);
    EXPECT_EQ(before, bump_->state());
    for (std::uint32_t packet = 0; packet < 3; ++packet) {
      give(At{1, 0, packet});
      expect_results(of_all(0, packet));
    }
    give(At{0, 4, 0});
    give(At{0, 5, 0});  // message 1 is still there
    EXPECT_EQ(3U, counters().dropped_early);
    give(At{1, 4, 0});
    EXPECT_EQ(2U, bump_->take().size());  // in the ring's order: rank 1 is asked for message 1
  }
}

// Complete is not enough: what waits for its turn would be lost, and all that is behind it would wait for ever.
TEST_F(NetreduceRepeats, NothingTakesBuffersOfASumThatWaitsForItsTurn) {
  netreduce::RingConfig config = ring_with(2, Order::ring);
  config.window = 1;
  config.message_packets = 1;
  start(config);
  give(At{0, 0, 0});
  give_all(1, 0);  // message 1 is complete, message 0 lacks rank 1
  drop_sent();
  give(At{0, 3, 0});  // two windows after message 1
  EXPECT_EQ(1U, counters().dropped_early);
  give(At{1, 0, 0});
  expect_results(of_all({{0, 0}, {1, 0}}));
  for (const std::uint64_t message : {2U, 3U}) {
    give_message(message);
    expect_results(of_all(message, 0));
  }
}

TEST_F(NetreduceRepeats, OnlyTheMessageTwoWindowsLaterTakesBuffers) {
  start(2);
  for (std::uint64_t message = 0; message < 4; ++message) give_message(message);
  drop_sent();
  const Bytes before = bump_->state();
  std::uint64_t refused = 0;
  // The same buffers, but not the next message in them; and far away.
  for (const std::uint64_t message : {std::uint64_t{8}, std::uint64_t{12}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    Crafted packet = hosts_->gradient(0, 4, 0);
    wire::netreduce::InaHeader header = hosts_->header(0, 4);
    header.message = message;
    wire::netreduce::write_header(hosts_->config.layout, packet.payload, header);
    give(packet, 0);
    EXPECT_EQ(++refused, counters().dropped_early) << message;
  }
  EXPECT_EQ(before, bump_->state());
  give_message(4);
  EXPECT_EQ(6U, bump_->take().size());
  // Before any message was there, too.
  start(2);
  Crafted packet = hosts_->gradient(0, 4, 0);
  give(packet, 0);
  EXPECT_EQ(1U, counters().dropped_early);
}

// Nothing of a message whose buffers were taken is in the sums of the one that took them.
TEST_F(NetreduceRepeats, AnOldMessagesContentNeverReachesTheNextOwnerOfItsBuffers) {
  start(2);
  hosts_->set_packets(4, 2);
  for (std::uint64_t message = 0; message < 4; ++message) give_message(message);
  drop_sent();
  give(At{0, 4, 0});
  give(At{0, 0, 1});  // late repeats of message 0
  give(At{1, 0, 0});
  give(At{1, 0, 1});
  EXPECT_EQ(1U, counters().dropped_old);
  EXPECT_EQ(2U, counters().dropped_unplaced);
  expect_nothing();
  give(At{1, 4, 0});
  expect_results(of_all(4, 0));
  give_all(4, 1);
  expect_results(of_all(4, 1));
  give_message(5);  // which follows a shorter one
  EXPECT_EQ(6U, bump_->take().size());
}

// ---- messages whose numbers are cut on the wire

TEST_F(NetreduceRepeats, ShortMessageNumbersAreExtended) {
  netreduce::RingConfig config = ring_of(2);
  config.message_packets = 1;
  config.dtype = DType::float32;
  config.layout = wire::netreduce::parse_layout("magic=4e52@0,ring=2:1,rank=3:1,message=4:2,header=8,endian=big");
  start(config);
  // By way of the first and last of some 65 536 messages, twice round.
  for (std::uint64_t message = 0; message < 131'080; ++message) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      Crafted packet = hosts_->gradient(rank, 0, 0);
      wire::netreduce::InaHeader header = hosts_->header(rank, message);
      wire::netreduce::write_header(config.layout, packet.payload, header);
      packet.packet.bth.psn = static_cast<std::uint32_t>(hosts_->first_psns[rank] + message) & wire::roce::psn_mask;
      give(packet, rank);
    }
    ASSERT_EQ(2U, bump_->take().size()) << message;
    if (message % 65'536 != 1) continue;
    // A late repeat from before the number wrapped is an old message, not one far ahead; one of this window is answered.
    for (const std::uint64_t back : {1U, 3U, 4U, 100U}) {
      if (back > message) continue;
      Crafted packet = hosts_->gradient(0, 0, 0);
      wire::netreduce::write_header(config.layout, packet.payload, hosts_->header(0, message - back));
      packet.packet.bth.psn = static_cast<std::uint32_t>(hosts_->first_psns[0] + message - back) & wire::roce::psn_mask;
      give(packet, 0);
      EXPECT_EQ(back <= 3 ? 1U : 0U, bump_->take().size()) << back;
    }
  }
  EXPECT_EQ(2U * 2, counters().dropped_old);
  EXPECT_EQ(131'080U, counters().sums);
}

}  // namespace
}  // namespace netsum::testing
