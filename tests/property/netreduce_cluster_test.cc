// Rings at one accelerator that must wait for a rank, or that goes away under them. (Rings of random calls on networks that
// lose, repeat, reorder and damage are the simulator's.)

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "support/pads.h"
#include "support/virtual_ring.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;
using stream::Operation;

// However late a rank is: the others repeat now and then, nothing breaks, and all is right when it comes.
TEST(NetreduceCluster, AStragglerIsWaitedFor) {
  for (const netreduce::Order order : {netreduce::Order::ring, netreduce::Order::arrival}) {
    RingJobConfig config;
    config.ranks = 4;
    config.window = 4;
    config.order = order;
    VirtualRing ring(config);
    constexpr std::size_t elements = 5000;
    std::vector<std::vector<float>> tensors(4, std::vector<float>(elements, 1.25F));
    const auto submit = [&](std::uint32_t rank) {
      Operation operation;
      operation.elements = elements;
      operation.data = tensors[rank].data();
      ring.submit(rank, operation);
    };
    for (const std::uint32_t rank : {0U, 1U, 3U}) submit(rank);
    EXPECT_FALSE(ring.run(1, 60s));
    const auto stall = ring.tunnel().accelerator().stall(VirtualRing::incarnation_of(0));
    ASSERT_TRUE(stall.has_value());
    EXPECT_TRUE(stall->missing.contains(2));
    EXPECT_EQ(1U, stall->missing.size());
    EXPECT_EQ(0U, ring.counters().results);
    for (const std::uint32_t rank : {0U, 1U, 3U}) {
      EXPECT_LT(ring.host(rank).sending().retransmissions, 60s / 250ms + 20) << "one packet per time-out, and no more";
    }
    submit(2);
    EXPECT_TRUE(ring.run(1, 60s));
    EXPECT_TRUE(ring.drain());
    ring.expect_counters_add_up();
    for (const auto& tensor : tensors) EXPECT_EQ(std::vector<float>(elements, 5.0F), tensor);
  }
}

// Sums that no accelerator can read: of equal values, in every packet that passes it, nothing is left to see.
TEST(NetreduceCluster, PrivateSumsAreRightAndLookRandom) {
  RingJobConfig config;
  config.ranks = 3;
  config.faults = {.loss = 0.01};
  config.pads = pads_of(config.ranks);
  VirtualRing ring(config);
  constexpr std::size_t elements = 20'000;
  std::array<std::uint64_t, 256> bytes{};
  std::uint64_t total = 0;
  std::set<std::uint32_t> seen;  // checksums
  ring.network.lose = [&](const Endpoint&, const Endpoint&, std::span<const std::byte> packet) {
    constexpr std::size_t headers = 150, icrc = 4;
    if (packet.size() < headers + icrc) return false;
    const auto values = packet.subspan(headers, packet.size() - headers - icrc);
    if (!seen.insert(crc32c(values)).second) return false;  // a repeat, or a result to another rank
    for (const std::byte byte : values) {
      ++bytes[std::to_integer<std::size_t>(byte)];
      ++total;
    }
    return false;
  };
  std::vector<std::vector<std::int32_t>> tensors(3, std::vector<std::int32_t>(elements, 4)), given(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ring.submit(rank, {.op = ReduceOp::avg, .dtype = DType::int32, .elements = elements, .data = tensors[rank].data()});
  }
  ASSERT_TRUE(ring.run(1, 60s));
  ring.network.lose = {};  // in a broadcast, ranks that give nothing send zeros
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    given[rank].assign(1001, rank == 2 ? 9 : 0);
    Operation operation{.number = 1, .collective = stream::Collective::broadcast, .elements = 4003, .root = 2};
    operation.data = given[rank].data();
    ring.submit(rank, operation);
  }
  ASSERT_TRUE(ring.run(2, 60s));
  for (const auto& tensor : tensors) EXPECT_EQ(std::vector<std::int32_t>(elements, 4), tensor);
  for (const auto& tensor : given) EXPECT_EQ(std::vector<std::int32_t>(1001, 9), tensor);
  double chi_square = 0;
  const double each = static_cast<double>(total) / 256;
  for (const std::uint64_t count : bytes)
    chi_square += (static_cast<double>(count) - each) * (static_cast<double>(count) - each) / each;
  EXPECT_LT(chi_square, 255 + 6 * 23);
}

// What restarted knows nothing, and passes nothing that it knows to be a gradient; no rank takes what was not summed.
TEST(NetreduceCluster, ABypassedAcceleratorIsNoticed) {
  RingJobConfig config;
  config.ranks = 3;
  VirtualRing ring(config);
  constexpr std::size_t elements = 20'000;
  std::vector<std::vector<float>> tensors(3, std::vector<float>(elements, 1));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Operation operation;
    operation.elements = elements;
    operation.data = tensors[rank].data();
    ring.submit(rank, operation);
  }
  std::uint64_t delivered = 0;
  ring.network.lose = [&](const Endpoint& from, const Endpoint&, std::span<const std::byte> bytes) {
    if (++delivered < 200 || from == endpoint_of(255, 7170)) return false;
    // From here on everything goes straight to where it was going: inner addresses are the hosts' own.
    wire::roce::Packet packet;
    EXPECT_EQ(wire::ParseError::none, wire::roce::parse(bytes, packet));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (VirtualRing::address_of_host(rank).address == packet.ip.destination) {
        ring.network.send(endpoint_of(255, 7170), VirtualRing::address_of_host(rank), bytes);
      }
    }
    return true;
  };
  EXPECT_FALSE(ring.run(1, 10s));
  std::size_t noticed = 0;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    if (ring.host(rank).worker().failure()) ++noticed;
    for (const float value : tensors[rank]) ASSERT_TRUE(value == 1 || value == 3) << "a sum, or what was there";
  }
  EXPECT_GT(noticed, 0U);
}

}  // namespace
}  // namespace netsum::testing
