// What lost packets cost, by the order in which the accelerator lets sums leave: four hosts' queue pairs in memory.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>

#include "support/virtual_ring.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::testing {
namespace {

using netreduce::Order;

struct Cost {
  std::uint64_t naks = 0, timeouts = 0, retransmissions = 0, out_of_order = 0, early = 0;
  std::uint32_t connections = 0;  // that went back
  Duration took{};
};

enum class Where { before_the_sum, behind_it };

constexpr std::uint32_t ranks = 4, message_packets = 16, window = 4;

// An all-reduce of that many messages. The tensors are right at the end.
Cost sum_up(VirtualRing& ring, std::uint32_t messages) {
  const std::size_t elements = std::size_t{messages} * (216 + 15 * 248) / 4;
  std::vector<std::vector<float>> tensors(ranks, std::vector<float>(elements));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::iota(tensors[rank].begin(), tensors[rank].end(), static_cast<float>(rank));
    stream::Operation operation;
    operation.elements = elements;
    operation.data = tensors[rank].data();
    ring.submit(rank, operation);
  }
  EXPECT_TRUE(ring.run(1));
  std::vector<float> sums(elements);
  for (std::size_t i = 0; i < elements; ++i) sums[i] = static_cast<float>(4 * i + 6);
  Cost cost;
  cost.took = ring.network.now.time_since_epoch();
  EXPECT_TRUE(ring.drain());
  cost.early = ring.counters().early;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(sums, tensors[rank]);
    const auto& sending = ring.host(rank).sending();
    cost.naks += sending.naks_received;
    cost.timeouts += sending.timeouts;
    cost.retransmissions += sending.retransmissions;
    cost.connections += sending.retransmissions != 0 ? 1 : 0;
    cost.out_of_order += ring.host(rank).receiving().out_of_order;
  }
  return cost;
}

void record(const std::string& name, const Cost& cost) {
  const auto property = [&](const char* what, auto value) {
    ::testing::Test::RecordProperty(what + ("_" + name), static_cast<int>(value));
  };
  property("retransmissions", cost.retransmissions);
  property("naks", cost.naks);
  property("timeouts", cost.timeouts);
  property("microseconds", std::chrono::duration_cast<std::chrono::microseconds>(cost.took).count());
}

Cost one_loss(Order order, Where where, bool selective = false) {
  constexpr std::uint32_t messages = 40;
  RingJobConfig config;
  config.ranks = ranks;
  config.order = order;
  config.selective = selective;
  config.window = window;
  config.message_packets = message_packets;
  VirtualRing ring(config);
  // The fifth packet of rank 1's tenth message, once.
  const std::uint32_t psn = (config.first_psn + 0x333333 + 9 * message_packets + 4) & wire::roce::psn_mask;
  const auto source = VirtualRing::address_of_host(1);
  bool lost = false;
  ring.network.lose = [&](const Endpoint& from, const Endpoint&, std::span<const std::byte> bytes) {
    wire::roce::Packet packet;
    EXPECT_EQ(wire::ParseError::none, wire::roce::parse(bytes, packet));
    const bool of_host = from == source;
    if (lost || packet.ip.source != source.address || packet.bth.psn != psn) return false;
    if (!wire::roce::shape_of(packet.bth.opcode).request || of_host != (where == Where::before_the_sum)) return false;
    lost = true;
    return true;
  };
  const Cost cost = sum_up(ring, messages);
  EXPECT_TRUE(lost);
  return cost;
}

// The paper sends a sum as soon as it is complete: the sums behind the one that lacks a packet overtake it on every
// connection, every receiver sees a gap, and every host goes back. Whose repeats overtake rank 1's loses them behind the gap
// once more, and waits for a time-out.
TEST(NetreduceOrder, OneLossBeforeTheSumMakesEveryConnectionGoBackAsInThePaper) {
  const Cost paper = one_loss(Order::arrival, Where::before_the_sum);
  EXPECT_EQ(4U, paper.connections);
  EXPECT_EQ(4U, paper.naks);
  const Cost ours = one_loss(Order::ring, Where::before_the_sum);
  EXPECT_EQ(1U, ours.connections);
  EXPECT_EQ(1U, ours.naks);
  EXPECT_EQ(1U, ours.early);
  EXPECT_EQ(2U, ours.out_of_order) << "the result that was sent early, twice, so that it is asked for";
  EXPECT_EQ(0U, ours.timeouts);
  EXPECT_GE(paper.retransmissions, 4 * ours.retransmissions);
  EXPECT_LT(ours.took, paper.took);
  record("ring", ours);
  record("arrival", paper);
}

// A lost result concerns one receiver. In the paper its sender goes back; here the accelerator answers the NAK.
TEST(NetreduceOrder, ALostResultMakesNobodyGoBack) {
  for (const Order order : {Order::ring, Order::arrival}) {
    const Cost cost = one_loss(order, Where::behind_it);
    EXPECT_EQ(order == Order::ring ? 0U : 1U, cost.connections);
    EXPECT_EQ(order == Order::ring ? 0U : 1U, cost.naks);
    EXPECT_EQ(0U, cost.timeouts);
    EXPECT_EQ(0U, cost.early);
  }
}

// The accelerator asks the sender for what did not arrive, and answers itself what a receiver misses.
TEST(NetreduceOrder, ALossCostsOnePacketIfHostsRepeatSinglePackets) {
  const Cost before = one_loss(Order::ring, Where::before_the_sum, true);
  EXPECT_EQ(1U, before.retransmissions);
  EXPECT_EQ(0U, before.naks + before.timeouts + before.early);
  const Cost behind = one_loss(Order::ring, Where::behind_it, true);
  EXPECT_EQ(0U, behind.retransmissions) << "the sum is held at the accelerator";
  EXPECT_EQ(0U, behind.naks + behind.timeouts);
  EXPECT_LT(behind.took, one_loss(Order::arrival, Where::behind_it).took);
}

// Any datagram may be lost, of each so many: all-reduces of 200 messages, 12,800 packets, with the same seeds in both
// orders.
TEST(NetreduceOrder, RandomLossCostsLessInTheRingsOrder) {
  for (const int one_in : {1000, 100}) {
    Cost costs[2];
    for (const Order order : {Order::ring, Order::arrival}) {
      Cost& sum = costs[order == Order::ring ? 0 : 1];
      for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        RingJobConfig config;
        config.ranks = ranks;
        config.order = order;
        config.window = window;
        config.message_packets = message_packets;
        config.seed = seed;
        config.faults.loss = 1.0 / one_in;
        VirtualRing ring(config);
        const Cost cost = sum_up(ring, 200);
        sum.retransmissions += cost.retransmissions;
        sum.naks += cost.naks;
        sum.timeouts += cost.timeouts;
        sum.took += cost.took;
      }
      record((order == Order::ring ? "ring_" : "arrival_") + std::to_string(one_in), sum);
    }
    EXPECT_LT(costs[0].retransmissions, costs[1].retransmissions);
    EXPECT_LT(costs[0].took, costs[1].took);
  }
}

}  // namespace
}  // namespace netsum::testing
