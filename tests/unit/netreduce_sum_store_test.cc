// The sums that a ring holds, and what it sends to the switch above about them, each by itself.
#include "protocol/netreduce/sum_store.h"

#include <gtest/gtest.h>

#include "protocol/netreduce/switch_above.h"
#include "support/netreduce_packets.h"

namespace netsum::testing {
namespace {

using netreduce::Place;

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

}  // namespace
}  // namespace netsum::testing
