// Jobs over UC queue pairs on a network that loses, repeats, reorders and damages: sums are exact, whatever the length of
// messages.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include "support/virtual_cluster.h"

namespace netsum::testing {
namespace {

using Tensors = std::vector<std::vector<std::int32_t>>;

Tensors drawn(std::uint32_t workers, std::size_t elements, std::uint64_t seed) {
  Random random(seed);
  Tensors tensors(workers);
  for (auto& tensor : tensors) {
    for (std::size_t i = 0; i < elements; ++i) tensor.push_back(static_cast<std::int32_t>(random.next()));
  }
  return tensors;
}

std::vector<std::int32_t> sum_of(const Tensors& tensors) {
  std::vector<std::int32_t> sum(tensors[0].size());
  for (const auto& tensor : tensors) {
    for (std::size_t i = 0; i < sum.size(); ++i)
      sum[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum[i]) + static_cast<std::uint32_t>(tensor[i]));
  }
  return sum;
}

TEST(SwitchmlRdma, SumsAreExactWhateverTheNetworkDoes) {
  std::uint64_t gaps = 0, late = 0, answered = 0, short_messages = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    const auto workers = static_cast<std::uint32_t>(2 + random.below(4));
    Faults faults;
    faults.loss = 0.1 * static_cast<double>(random.below(4)) / 4;
    faults.duplicate = 0.05 * static_cast<double>(random.below(3));
    faults.corrupt = 0.02 * static_cast<double>(random.below(2));
    // UC cannot go on where packets of a queue pair overtake each other all the time. Here some are late.
    faults.late = 0.02 * static_cast<double>(random.below(3));
    faults.latest = std::chrono::milliseconds(1 + random.below(100));
    VirtualCluster cluster({.workers = workers,
                            .lanes = static_cast<std::uint32_t>(1 + random.below(2)),
                            .slots = static_cast<std::uint32_t>(1 + random.below(4)),
                            .packet_elements = 256U << random.below(5),
                            .seed = seed,
                            .faults = faults,
                            .rdma = true});
    std::vector<Tensors> tensors;
    std::vector<std::vector<std::int32_t>> sums;
    for (std::uint64_t number = 0; number < 4; ++number) {
      tensors.push_back(drawn(workers, 1 + random.below(20'000), seed * 4 + number));
      sums.push_back(sum_of(tensors.back()));
      short_messages += tensors.back()[0].size() % 4096 != 0;
      for (std::uint32_t rank = 0; rank < workers; ++rank) {
        auto& tensor = tensors.back()[rank];
        cluster.submit(rank, {.number = number, .dtype = DType::int32, .elements = tensor.size(), .data = tensor.data()});
      }
    }
    ASSERT_TRUE(cluster.run(4, std::chrono::seconds(600))) << seed;
    for (std::size_t number = 0; number < tensors.size(); ++number) {
      for (const auto& tensor : tensors[number]) ASSERT_EQ(sums[number], tensor) << seed;
    }
    const switchml::JobCounters& counters = *cluster.rdma_switch().job_counters(VirtualCluster::job_epoch);
    EXPECT_EQ(counters.packets, outcomes(counters));
    EXPECT_EQ(0U, counters.dropped_early);
    gaps += counters.dropped_gap;
    late += counters.dropped_old;
    answered += counters.repeats_answered;
  }
  EXPECT_GT(gaps, 1000U);
  EXPECT_GT(late, 1000U);
  EXPECT_GT(answered, 1000U);
  EXPECT_GT(short_messages, 100U);
}

// Floats, whose exponents travel two a message; one that is not finite costs its half of a message, and no more.
TEST(SwitchmlRdma, AHalfOfAMessageIsABlock) {
  constexpr std::size_t elements = 4 * 4096;
  VirtualCluster cluster({.workers = 2, .slots = 2, .packet_elements = 4096, .rdma = true});
  std::vector<std::vector<float>> tensors(2, std::vector<float>(elements, 1.5F));
  tensors[1][4096 * 2 + 5] = std::numeric_limits<float>::infinity();
  for (std::size_t i = 2048; i < 4096; ++i) tensors[0][i] = 1e20F;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    cluster.submit(rank, {.number = 0, .elements = elements, .data = tensors[rank].data()});
  }
  ASSERT_TRUE(cluster.run(1));
  for (std::size_t i = 0; i < elements; ++i) {
    const float expected = i / 2048 == 1 ? 1e20F : 3.0F;
    ASSERT_TRUE(i / 2048 == 4 ? std::isnan(tensors[1][i]) : std::fabs(tensors[1][i] - expected) < 1e-7F * expected) << i;
  }
  EXPECT_EQ(2U, cluster.worker(0).counters().exponent_rounds);  // the first window's alone
}

// The largest error of a layer, over its own values, where layers of 1,000 elements are up to so many bits apart.
double worst_layer(std::uint32_t message_elements, std::uint64_t bits) {
  constexpr std::size_t elements = 64'000, layer = 1000;
  constexpr std::uint32_t workers = 4;
  VirtualCluster cluster({.workers = workers, .slots = 4, .packet_elements = message_elements, .rdma = true});
  Random random(1);
  std::vector<double> scales, sums(elements);
  for (std::size_t i = 0; i < elements / layer; ++i)
    scales.push_back(std::ldexp(1.0, -static_cast<int>(random.below(bits + 1))));
  std::vector<std::vector<float>> tensors(workers, std::vector<float>(elements));
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    for (std::size_t i = 0; i < elements; ++i) {
      double value = -6;  // of a normal distribution, nearly
      for (int j = 0; j < 12; ++j) value += static_cast<double>(random.next() >> 11) * 0x1p-53;
      sums[i] += tensors[rank][i] = static_cast<float>(value * scales[i / layer]);
    }
    cluster.submit(rank, {.elements = elements, .data = tensors[rank].data()});
  }
  EXPECT_TRUE(cluster.run(1));
  double worst = 0;
  for (std::size_t begin = 0; begin < elements; begin += layer) {
    double error = 0, magnitude = 0;
    for (std::size_t i = begin; i < begin + layer; ++i) {
      error += std::pow(tensors[0][i] - sums[i], 2);
      magnitude += std::pow(sums[i], 2);
    }
    worst = std::max(worst, std::sqrt(error / magnitude));
  }
  return worst;
}

// docs/protocol-switchml-rdma.md has the table that this prints.
TEST(SwitchmlRdma, LongBlocksCostBits) {
  for (const std::uint64_t bits : {0U, 8U, 16U}) {
    double of_one = 0;
    for (const std::uint32_t packets : {1U, 4U, 16U}) {
      const double worst = worst_layer(256 * packets, bits);
      std::printf("layers up to %2u bits apart, messages of %2u packets: error %.1e\n", static_cast<unsigned>(bits), packets,
                  worst);
      if (packets == 1) of_one = worst;
      EXPECT_GE(worst, of_one * 0.9);
      EXPECT_LT(worst, of_one * std::ldexp(1.0, static_cast<int>(bits) + 2));
    }
  }
}

TEST(SwitchmlRdma, CallsThatDifferEndInAnErrorAtAllRanks) {
  VirtualCluster cluster({.workers = 3, .packet_elements = 1024, .rdma = true});
  std::vector<std::vector<std::int32_t>> tensors(3, std::vector<std::int32_t>(3000, 1));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    cluster.submit(rank, {.dtype = DType::int32, .elements = 3000, .tag = rank / 2, .data = tensors[rank].data()});
  }
  EXPECT_FALSE(cluster.run(1, std::chrono::seconds(1)));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto& failure = cluster.worker(rank).failure();
    ASSERT_TRUE(failure.has_value()) << rank;
    EXPECT_EQ(switchml::WorkerFailure::Kind::mismatch, failure->kind);
    EXPECT_NE(failure->first_rank / 2, failure->second_rank / 2);
  }
}

}  // namespace
}  // namespace netsum::testing
