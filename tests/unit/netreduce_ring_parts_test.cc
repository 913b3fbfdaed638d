// The parts of a ring, each by itself: the sums that it holds, what it sends to the switch above about them, the progress of
// its lines, and its stream where that is learned.
#include <gtest/gtest.h>

#include "protocol/netreduce/learned_stream.h"
#include "protocol/netreduce/line_progress.h"
#include "protocol/netreduce/sum_store.h"
#include "protocol/netreduce/switch_above.h"
#include "support/netreduce_packets.h"

namespace netsum::testing {
namespace {

using netreduce::LineProgress;
using netreduce::Order;
using netreduce::Place;
using netreduce::Way;

class SumStoreTest : public ::testing::Test {
 protected:
  static netreduce::RingConfig two_ranks() {
    netreduce::RingConfig config;
    config.members = 2;
    config.window = 2;
    config.message_packets = 3;
    config.mtu = 256;
    return config;
  }

  void begin(std::uint64_t message) {
    store.open(store.slot_of(message), hosts.header(0, message), sink);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      store.first_psn(store.slot_of(message), rank) = hosts.psn_of(rank, message, 0);
    }
  }
  void keep(std::uint32_t rank, const Place& place, std::size_t left_out = 0) {
    const Bytes frame = hosts.gradient(rank, place.message, place.packet).frame(4);
    wire::roce::Packet packet;
    ASSERT_EQ(wire::ParseError::none, wire::roce::parse(std::span(frame).subspan(4), packet));
    const wire::roce::Shape shape = wire::roce::shape_of(packet.bth.opcode);
    store.store(store.index(place), rank, {frame, 4, frame.size() - 4, packet, shape, {}}, left_out);
    ++store.at(place).arrived;
    store.at(place).payload = static_cast<std::uint16_t>(packet.payload.size());
  }
  // Both ranks' packets, and their sum.
  void sum_up(const Place& place) {
    const Bytes last = hosts.gradient(1, place.message, place.packet).payload;
    keep(0, place);
    keep(1, place, last.size() - store.skipped(place.packet));
    store.add_up(place, 1, last, 1);
  }

  RingHosts hosts{two_ranks()};
  netreduce::SumStore store{two_ranks(), 2, 2, hosts.memory()};
  RecordingSink sink;
};

TEST_F(SumStoreTest, FindsAPacketInEachMessageOfTwoWindowsAndNowhereElse) {
  for (std::uint64_t message = 0; message < 4; ++message) begin(message);
  std::uint32_t last_slot = 3;
  EXPECT_EQ((Place{0, 2}), store.find(1, hosts.psn_of(1, 0, 2), last_slot));
  EXPECT_EQ(0U, last_slot);
  EXPECT_EQ((Place{3, 0}), store.find(1, hosts.psn_of(1, 3, 0), last_slot));
  EXPECT_FALSE(store.find(1, hosts.psn_of(1, 4, 0), last_slot)) << "the first packet of a message that was not opened";
  begin(4);
  EXPECT_EQ((Place{4, 1}), store.find(1, hosts.psn_of(1, 4, 1), last_slot));
  EXPECT_FALSE(store.find(1, hosts.psn_of(1, 0, 2), last_slot)) << "its buffers are another message's";
}

TEST_F(SumStoreTest, AMessageFollowsTheOneBeforeItWithoutAGap) {
  begin(1);
  const auto follows = [&](std::uint64_t message, std::uint32_t psn, bool others) {
    return store.follows(0, hosts.header(0, message), psn, others);
  };
  for (const bool others : {false, true}) {
    for (const std::uint64_t message : {0U, 2U}) EXPECT_TRUE(follows(message, hosts.psn_of(0, message, 0), others));
    EXPECT_FALSE(follows(0, hosts.psn_of(0, 0, 1), others)) << "it would reach into message 1";
    EXPECT_FALSE(follows(2, hosts.psn_of(0, 1, 2), others)) << "it would begin in message 1";
    EXPECT_EQ(others, follows(2, hosts.psn_of(0, 2, 1), others));
    EXPECT_TRUE(follows(3, hosts.psn_of(0, 1, 0), others)) << "of its neighbours nothing is known";
  }
}

TEST_F(SumStoreTest, KeepsFramesAroundTheSumOfTheirValues) {
  begin(0);
  const Place place{0, 1};
  sum_up(place);
  const netreduce::Sum sum = store.sum(store.index(place), place.packet);
  const Bytes total = hosts.sum(0, 1);
  EXPECT_TRUE(std::ranges::equal(total, sum.payload.subspan(sum.skip)));
  const netreduce::Frame kept = store.frame_of(store.index(place), 0);
  EXPECT_TRUE(std::ranges::equal(hosts.gradient(0, 0, 1).frame(4), kept.bytes));
}

TEST_F(SumStoreTest, FlushesWhatRefersToASumBeforeItIsOverwritten) {
  begin(0);
  sum_up({0, 1});
  const Bytes total = hosts.sum(0, 1);
  static_cast<void>(sink.around({}, 0, store.sum(1, 1).payload.subspan(8), 0));
  store.slot(0).referenced = true;
  begin(4);
  sum_up({4, 1});
  const std::vector<Datagram> sent = sink.take();
  ASSERT_EQ(1U, sent.size());
  EXPECT_EQ(total, sent[0].bytes);
}

TEST_F(SumStoreTest, AsksOnceForTotalsThatOneOvertook) {
  netreduce::SwitchAbove above(netreduce::Uplink{}, true);
  netreduce::RingCounters counters;
  begin(0);
  for (std::uint32_t packet = 0; packet < 3; ++packet) sum_up({0, packet});
  const auto total = [&](std::uint32_t packet) {
    store.at(Place{0, packet}).complete = true;
    above.on_total({0, packet}, store, counters, sink);
  };
  total(1);
  EXPECT_EQ(1U, counters.sent_up) << "the sum of packet 0 again";
  total(2);
  EXPECT_EQ(1U, counters.sent_up);
  total(0);
  EXPECT_EQ((Place{1, 0}), above.expected());
  EXPECT_FALSE(above.asked());
  above.send_up_again({0, 0}, store, counters, sink);
  EXPECT_EQ(1U, counters.sent_up) << "its total is there";
}

// ---- a line's progress: line 1 of two

class LineProgressTest : public SumStoreTest {
 protected:
  using Places = std::vector<Place>;

  void SetUp() override { begin(0); }
  static netreduce::Line answered() {
    netreduce::Line line;
    line.answers = netreduce::Connection{};
    return line;
  }
  void arrive(LineProgress& line, const Place& place) {
    line.on_packet(place);
    keep(1, place);
    line.on_stored(place, store);
  }
  // The sum of the place is complete. What leaves, and what leaves early.
  std::pair<Places, std::optional<Place>> complete(LineProgress& line, const Place& place) {
    store.at(place).complete = true;
    Places left;
    const auto early = line.advance(place, store, [&](const Place& each) { left.push_back(each); });
    line.check(store, false);
    return {left, early};
  }
};

TEST_F(LineProgressTest, SumsLeaveInTheOrderOfTheStream) {
  LineProgress line({}, 1, Order::ring);
  for (std::uint32_t packet = 0; packet < 3; ++packet) arrive(line, {0, packet});
  EXPECT_EQ(std::pair(Places{}, std::optional<Place>()), complete(line, {0, 1}));
  EXPECT_EQ(LineProgress::Repeat::held, line.on_repeat({0, 1}, store));
  EXPECT_EQ((Places{{0, 0}, {0, 1}}), complete(line, {0, 0}).first);
  EXPECT_EQ((Place{0, 2}), line.sent());
  EXPECT_EQ(LineProgress::Repeat::answered, line.on_repeat({0, 1}, store));
}

TEST_F(LineProgressTest, SumsLeaveAtOnceInTheOrderOfArrival) {
  LineProgress line({}, 1, Order::arrival);
  for (std::uint32_t packet = 0; packet < 3; ++packet) arrive(line, {0, packet});
  EXPECT_EQ((Places{{0, 1}}), complete(line, {0, 1}).first);
  EXPECT_EQ((Places{{0, 0}}), complete(line, {0, 0}).first) << "that of packet 1 has left";
  EXPECT_EQ((Place{0, 2}), line.sent());
}

TEST_F(LineProgressTest, NoSumLeavesWhereHeadersDo) {
  netreduce::Line leaving;
  leaving.way = Way::leaving;
  LineProgress line(leaving, 1, Order::ring);
  arrive(line, {0, 0});
  EXPECT_TRUE(complete(line, {0, 0}).first.empty());
  EXPECT_EQ((Place{0, 1}), line.sent());
}

TEST_F(LineProgressTest, ShowsAGapToTheReceiverOnce) {
  LineProgress line({}, 1, Order::ring);
  arrive(line, {0, 1});
  EXPECT_EQ((Place{0, 1}), complete(line, {0, 1}).second) << "packet 0 is lost: the receiver is to notice";
  arrive(line, {0, 2});
  EXPECT_FALSE(complete(line, {0, 2}).second);
  EXPECT_EQ((Place{0, 1}), line.on_nak_answered(store)) << "the NAK that was to come was for another packet";
  line.on_packet({0, 0});
  EXPECT_FALSE(line.on_nak_answered(store)) << "the sender goes back: its repeat of packet 0 is on its way";
}

TEST_F(LineProgressTest, AnswersANakWithWhatHasLeft) {
  LineProgress line(answered(), 1, Order::ring);
  for (std::uint32_t packet = 0; packet < 3; ++packet) arrive(line, {0, packet});
  static_cast<void>(complete(line, {0, 0}));
  static_cast<void>(complete(line, {0, 2}));
  EXPECT_EQ((Place{0, 0}), line.left(hosts.psn_of(1, 0, 0), store));
  EXPECT_FALSE(line.left(hosts.psn_of(1, 0, 1), store)) << "it lacks a contribution";
  EXPECT_FALSE(line.left(hosts.psn_of(1, 0, 2), store)) << "it waits for its turn";
  EXPECT_FALSE(line.left(hosts.psn_of(1, 1, 0), store)) << "of a message that has not begun";
}

TEST_F(LineProgressTest, IgnoresRepeatsOfWhatLeftAfterTheirSenderHadGoneBack) {
  LineProgress line(answered(), 1, Order::ring);
  for (std::uint32_t packet = 0; packet < 3; ++packet) arrive(line, {0, packet});
  static_cast<void>(complete(line, {0, 0}));
  line.on_packet({0, 0});  // the sender goes back
  EXPECT_EQ(LineProgress::Repeat::answered, line.on_repeat({0, 0}, store));
  for (const std::uint32_t packet : {1U, 2U}) static_cast<void>(complete(line, {0, packet}));
  EXPECT_EQ(LineProgress::Repeat::ignored, line.on_repeat({0, 1}, store));
  EXPECT_EQ(LineProgress::Repeat::answered, line.on_repeat({0, 2}, store)) << "nothing will come behind the last";
}

TEST_F(LineProgressTest, AsksOnceForEachPacketThatIsMissing) {
  netreduce::Line single;
  single.repair = {.egress = {}, .first_psn = wire::roce::psn_mask};
  LineProgress line(single, 1, Order::ring);
  const auto missing = [&](std::uint32_t psn, bool placed) {
    const auto [first, count] = line.missing(psn, placed, store);
    return std::pair(first, count);
  };
  EXPECT_EQ(std::pair(wire::roce::psn_mask, 0U), missing(wire::roce::psn_mask, true));
  EXPECT_EQ(std::pair(0U, 2U), missing(2, true));
  EXPECT_EQ(0U, missing(1, true).second) << "one of them came";
  EXPECT_EQ(std::pair(3U, 1U), missing(3, false)) << "dropped, as its message has not begun";
  EXPECT_EQ(0U, missing(4 + static_cast<std::uint32_t>(store.size()) + 1, true).second) << "beyond what can be in flight";
  EXPECT_EQ(std::pair(4U, 0U), missing(4, true));
}

// ---- a stream that is learned

netreduce::RingConfig foreign(std::uint32_t members) {
  netreduce::RingConfig config;
  config.members = members;
  config.window = 2;
  config.layout = wire::netreduce::parse_layout("magic=4e527476@0,ring=4:2,rank=6:2,message=8:1,header=16");
  return config;
}

TEST(LearnedStream, HasGatheredWhenAllThatContributeAreRecorded) {
  netreduce::LearnedStream stream(foreign(3), 3, 2);
  stream.bind(0, false);
  EXPECT_FALSE(stream.gathered());
  stream.bind(1, true);
  EXPECT_TRUE(stream.bound(1) && stream.held(1));
  EXPECT_FALSE(stream.gathered()) << "a death now would lose rank 1's connection";
  stream.release(1);
  EXPECT_FALSE(stream.bound(2));
  EXPECT_TRUE(stream.gathered()) << "what arrives from another rack is no rank's here";
}

TEST(LearnedStream, WaitsForTheOtherRacksInEachLife) {
  netreduce::RingConfig config = foreign(2);
  EXPECT_FALSE(netreduce::LearnedStream(config, 2, 2).waits());
  config.learned_lines = true;
  netreduce::LearnedStream stream(config, 2, 1);
  EXPECT_TRUE(stream.waits());
  stream.begin({});
  EXPECT_FALSE(stream.waits());
  netreduce::LearnedStream next(config, 2, 1);
  next.follow(stream);
  EXPECT_TRUE(next.waits());
  EXPECT_EQ(stream.attempt() + 1, next.attempt());
}

TEST(LearnedStream, TellsANewStreamFromANumberThatWraps) {
  const netreduce::LearnedStream stream(foreign(2), 2, 2);
  EXPECT_TRUE(stream.begins_another(0, 3)) << "messages have not wrapped";
  EXPECT_TRUE(stream.begins_another(0, 200)) << "the wrap is further away than two windows";
  for (const std::uint32_t next : {252U, 256U, 260U}) EXPECT_FALSE(stream.begins_another(0, next)) << next;
  EXPECT_TRUE(stream.begins_another(0, 261));
  EXPECT_FALSE(stream.begins_another(1, 3));
}

TEST(LearnedStream, OfOtherRingsIsBoundFromTheBeginning) {
  netreduce::RingConfig config = foreign(2);
  config.connections.resize(2);
  const netreduce::LearnedStream stream(config, 2, 2);
  EXPECT_FALSE(stream.learned());
  EXPECT_TRUE(stream.gathered());
}

}  // namespace
}  // namespace netsum::testing
