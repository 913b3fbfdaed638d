// Trees of switches under a virtual clock: sums have the bits of one switch, and take as long. Times are exact, and the same
// on every machine.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "support/virtual_tree.h"

namespace netsum::testing {
namespace {

struct Outcome {
  std::vector<float> sum;
  double seconds = 0;
};

// An all-reduce; all ranks have the same sum.
Outcome all_reduce(const TreeConfig& config, std::uint64_t elements, DType dtype = DType::float32) {
  VirtualTree tree(config);
  const std::size_t width = bytes_of(dtype);
  std::vector<std::vector<float>> tensors;
  Random random(7);
  std::vector<float> values(elements * width / sizeof(float));
  for (float& value : values) value = static_cast<float>(random.below(1 << 20)) * 0x1p-10F;
  for (std::uint32_t rank = 0; rank < tree.ranks(); ++rank) {
    tensors.push_back(values);
    for (std::size_t i = rank % 16; i < values.size(); i += 16) tensors[rank][i] *= static_cast<float>(1 + rank % 5);
  }
  for (std::uint32_t rank = 0; rank < tree.ranks(); ++rank) {
    stream::Operation operation;
    operation.dtype = dtype;
    operation.elements = elements;
    operation.data = tensors[rank].data();
    tree.submit(rank, operation);
  }
  EXPECT_TRUE(tree.run(1, std::chrono::minutes(5)));
  for (std::uint32_t rank = 1; rank < tree.ranks(); ++rank) {
    EXPECT_EQ(0, std::memcmp(tensors[0].data(), tensors[rank].data(), values.size() * sizeof(float))) << "rank " << rank;
  }
  return {tensors[0], std::chrono::duration<double>(tree.network.now.time_since_epoch()).count()};
}

[[nodiscard]] bool same_bits(const Outcome& one, const Outcome& other) {
  return one.sum.size() == other.sum.size() &&
         std::memcmp(one.sum.data(), other.sum.data(), one.sum.size() * sizeof(float)) == 0;
}

TEST(SwitchmlTree, EveryTreeHasTheBitsOfOneSwitch) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int32}) {
    for (const std::uint64_t elements : {std::uint64_t{5}, std::uint64_t{3000}}) {
      if (dtype == DType::bfloat16 && elements % 2 != 0) continue;  // whole words
      const Outcome one = all_reduce({.ranks_per_switch = 8}, elements, dtype);
      for (const auto& levels : std::vector<std::vector<std::uint32_t>>{{2}, {4}, {2, 4}, {1, 2, 4}}) {
        for (const double loss : {0.0, 0.02}) {
          TreeConfig config{.levels = levels, .ranks_per_switch = 8 / levels.back()};
          config.faults.loss = config.faults.duplicate = loss;
          config.faults.most_delay = std::chrono::microseconds(loss == 0 ? 10 : 400);
          EXPECT_TRUE(same_bits(one, all_reduce(config, elements, dtype)))
              << to_string(dtype) << ", " << elements << " elements, " << levels.size() << " levels, loss " << loss;
        }
      }
    }
  }
}

// The paper's outlook (§7), with 64 racks of 16 ranks under 4 spines: as long per element as one rack.
TEST(SwitchmlTree, ManyRacksTakeAsLongAsOne) {
  constexpr std::uint64_t elements = 256 * 240;
  TreeConfig one{.ranks_per_switch = 16, .slots = 32};
  one.faults.least_delay = one.faults.most_delay = std::chrono::microseconds(20);
  TreeConfig many = one;
  many.levels = {4, 64};
  const double rack = all_reduce(one, elements).seconds, all = all_reduce(many, elements).seconds;
  std::printf("16 ranks at one switch: %.4f s; 1024 ranks in 64 racks under 4 spines: %.4f s; ratio %.3f\n", rack, all,
              all / rack);
  EXPECT_LE(all, 1.05 * rack);
}

// Of the time without. With 16 leaves each chunk loses a packet on one of its 104 ways over a link.
TEST(SwitchmlTree, LossesAreRepairedOnTheLinkThatTheyHappenOn) {
  struct Limit {
    std::vector<std::uint32_t> levels;
    double loss, ratio;
  };
  for (const Limit& limit : {Limit{{2, 4}, 0.001, 1.1}, Limit{{2, 4}, 0.01, 1.35}, Limit{{4, 16}, 0.01, 1.7}}) {
    TreeConfig config{.levels = limit.levels, .slots = 64};
    config.faults.least_delay = config.faults.most_delay = std::chrono::microseconds(50);
    const double without = all_reduce(config, 256 * 4000).seconds;
    config.faults.loss = limit.loss;
    const double with = all_reduce(config, 256 * 4000).seconds;
    std::printf("%u leaves, %g %% lost: %.3f s, %.3f s without; ratio %.3f\n", limit.levels.back(), limit.loss * 100, with,
                without, with / without);
    EXPECT_LE(with, limit.ratio * without);
  }
}

TEST(SwitchmlTree, ASwitchSendsEachChunkUpstreamOnce) {
  for (const std::uint32_t ranks : {1U, 2U, 4U}) {
    VirtualTree tree({.levels = {2}, .ranks_per_switch = ranks});
    std::vector<std::vector<std::int32_t>> tensors(tree.ranks(), std::vector<std::int32_t>(256 * 20, 1));
    for (std::uint32_t rank = 0; rank < tree.ranks(); ++rank) {
      stream::Operation operation;
      operation.dtype = DType::int32;
      operation.elements = tensors[rank].size();
      operation.data = tensors[rank].data();
      tree.submit(rank, operation);
    }
    ASSERT_TRUE(tree.run(1));
    EXPECT_EQ(static_cast<std::int32_t>(tree.ranks()), tensors[0][0]);
    for (std::size_t leaf = 1; leaf < tree.switches(); ++leaf) {
      EXPECT_EQ(20U, tree.switch_counters(leaf).sums_sent) << ranks << " ranks";
      EXPECT_EQ(20U * ranks, tree.switch_counters(leaf).contributions);
    }
  }
}

}  // namespace
}  // namespace netsum::testing
