// Jobs at one switch on a virtual network: what they send, and what waiting, losses, mistakes and a switch that forgets
// cost.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/virtual_cluster.h"

namespace netsum::testing {
namespace {

using stream::Collective;
using stream::Operation;

// 1 KiB of payload is 256 int32, or 512 halves.
TEST(SwitchmlCluster, SixteenBitsTakeHalfThePackets) {
  for (const WireFormat wire : {WireFormat::native, WireFormat::float16, WireFormat::bfloat16}) {
    VirtualCluster cluster({.workers = 2});
    std::vector<std::vector<float>> tensors(2, std::vector<float>(4096, 1.0F));
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      cluster.submit(rank, {.number = 0, .elements = 4096, .data = tensors[rank].data(), .wire = wire});
    }
    ASSERT_TRUE(cluster.run(1));
    const auto& counters = cluster.worker(0).counters();
    EXPECT_EQ(wire == WireFormat::native ? 16U : 8U, counters.contributions - counters.exponent_rounds);
    EXPECT_EQ(wire == WireFormat::native, counters.exponent_rounds != 0);
    EXPECT_EQ(2.0F, tensors[1][4095]);
  }
}

// A rank half a second late must cost the others fewer than two extra packets per slot.
TEST(SwitchmlCluster, StragglerCostsFewPackets) {
  constexpr std::uint32_t slots = 64;
  VirtualCluster cluster({.workers = 3, .slots = slots});
  constexpr std::uint64_t elements = 256 * slots * 4;
  std::vector<std::vector<float>> tensors(3, std::vector<float>(elements, 1.0F));
  for (const std::uint32_t rank : {0U, 1U})
    cluster.submit(rank, {.number = 0, .elements = elements, .data = tensors[rank].data()});
  while (cluster.step(Time(std::chrono::milliseconds(500)))) {
  }
  cluster.submit(2, {.number = 0, .elements = elements, .data = tensors[2].data()});
  ASSERT_TRUE(cluster.run(1));
  EXPECT_LT(cluster.worker(0).counters().retransmissions, 2 * slots);
  EXPECT_GE(cluster.worker(0).counters().retransmissions, slots);  // each was asked about once
  EXPECT_EQ(3.0F, tensors[0][0]);
}

// A chip tells nobody of a loss: time-outs alone make up for it, and without the patience for what it would tell.
TEST(SwitchmlCluster, ALossCostsATimeOutAtAChip) {
  ClusterConfig config{.workers = 4, .slots = 16, .faults = {.loss = 0.01}, .chip = true};
  VirtualCluster cluster(config);
  constexpr std::size_t elements = 256 * 16 * 200;
  std::vector<std::vector<std::int32_t>> tensors(config.workers, std::vector<std::int32_t>(elements, 1));
  for (std::uint32_t rank = 0; rank < config.workers; ++rank)
    cluster.submit(rank, {.dtype = DType::int32, .elements = elements, .data = tensors[rank].data()});
  ASSERT_TRUE(cluster.run(1));
  for (const auto& tensor : tensors)
    EXPECT_EQ(static_cast<std::ptrdiff_t>(elements), std::count(tensor.begin(), tensor.end(), 4));
  EXPECT_LT(cluster.network.now - Time{}, std::chrono::milliseconds(1000));
  EXPECT_EQ(0U, cluster.worker(0).counters().losses);
  EXPECT_GT(cluster.worker(0).counters().retransmissions, 50U);
}

TEST(SwitchmlCluster, LookAheadSavesTheExponentRoundsOfABusyStream) {
  constexpr std::uint32_t slots = 8;
  VirtualCluster cluster({.workers = 2, .slots = slots});
  std::vector<std::vector<float>> tensors(2, std::vector<float>(256 * slots * 10, 1.0F));
  for (std::uint64_t number = 0; number < 3; ++number) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      cluster.submit(rank, {.number = number, .elements = tensors[rank].size(), .data = tensors[rank].data()});
    }
  }
  ASSERT_TRUE(cluster.run(3));
  EXPECT_EQ(slots, cluster.worker(0).counters().exponent_rounds);  // the first window only, across all three tensors
}

TEST(SwitchmlCluster, MismatchedCallsEndInAnErrorThatNamesBothRanks) {
  for (int kind = 0; kind < 6; ++kind) {
    VirtualCluster cluster({.workers = 3, .lanes = 1, .slots = 4});
    std::vector<std::vector<float>> tensors(3, std::vector<float>(3000, 1.0F));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      Operation operation{.number = 0, .elements = 2000, .data = tensors[rank].data()};
      if (rank == 1) {
        if (kind == 0) operation.elements = 100;
        if (kind == 1) operation.dtype = DType::int32;
        if (kind == 2) operation.op = ReduceOp::avg;
        if (kind == 3) operation.tag = 9;
        if (kind == 4) operation = {.number = 0, .collective = Collective::barrier};
        if (kind == 5) operation.wire = WireFormat::bfloat16;
      }
      cluster.submit(rank, operation);
    }
    EXPECT_FALSE(cluster.run(1, std::chrono::seconds(1)));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const auto& failure = cluster.worker(rank).failure();
      ASSERT_TRUE(failure.has_value()) << "rank " << rank << ", kind " << kind;
      EXPECT_EQ(switchml::WorkerFailure::Kind::mismatch, failure->kind);
      EXPECT_TRUE(failure->first_rank == 1 || failure->second_rank == 1);
      EXPECT_NE(failure->first_rank, failure->second_rank);
    }
  }
}

TEST(SwitchmlCluster, ASwitchThatForgotTheJobSaysSo) {
  VirtualCluster cluster({.workers = 2});
  std::vector<float> tensor(1000, 1.0F);
  cluster.lane_switch().remove_job(VirtualCluster::job_epoch);
  cluster.submit(0, {.number = 0, .elements = 1000, .data = tensor.data()});
  EXPECT_FALSE(cluster.run(1, std::chrono::seconds(1)));
  ASSERT_TRUE(cluster.worker(0).failure().has_value());
  EXPECT_EQ(switchml::WorkerFailure::Kind::unknown_job, cluster.worker(0).failure()->kind);
}

TEST(SwitchmlCluster, AStallNamesTheMissingRanks) {
  VirtualCluster cluster({.workers = 3});
  std::vector<float> tensor(10, 1.0F);
  cluster.submit(1, {.number = 0, .elements = 10, .data = tensor.data()});
  EXPECT_FALSE(cluster.run(1, std::chrono::seconds(1)));
  const auto stall = cluster.worker(1).oldest_stall();
  ASSERT_TRUE(stall.has_value());
  EXPECT_TRUE(stall->missing.contains(0) && stall->missing.contains(2) && !stall->missing.contains(1));
  const auto stalled = cluster.lane_switch().stalled(VirtualCluster::job_epoch, 5);
  ASSERT_EQ(1U, stalled.size());
  EXPECT_EQ(stall->missing, stalled[0].missing);
}

}  // namespace
}  // namespace netsum::testing
