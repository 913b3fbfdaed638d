// Floats in blocks of 8 bits, for every instruction set that this CPU has: bit by bit against arithmetic of the test's own.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;
using Bytes = std::vector<std::byte>;

class Block8 : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// At an odd address, and nothing around them is written.
Bytes packed(const std::vector<float>& values, std::uint64_t key = 0, std::uint64_t first = 0) {
  Bytes memory(block8_bytes(values.size()) + 8, std::byte{0xee});
  to_block8(memory.data() + 3, values.data(), values.size(), key, first);
  EXPECT_TRUE(std::all_of(memory.begin(), memory.begin() + 3, [](std::byte byte) { return byte == std::byte{0xee}; }));
  EXPECT_TRUE(std::all_of(memory.end() - 5, memory.end(), [](std::byte byte) { return byte == std::byte{0xee}; }));
  return {memory.begin() + 3, memory.end() - 5};
}

std::vector<float> unpacked(const Bytes& blocks, std::size_t count, std::uint32_t divisor = 1) {
  std::vector<float> values(count + 2, 7.0F);
  from_block8(values.data() + 1, blocks.data(), count, divisor);
  EXPECT_TRUE(values.front() == 7.0F && values.back() == 7.0F);
  return {values.begin() + 1, values.end() - 1};
}

// What a double is in a block of this exponent.
double rounded(double value, int exponent) {
  const double step = std::ldexp(1.0, exponent - 133);
  return std::isfinite(value) ? std::clamp(std::nearbyint(value / step), -127.0, 127.0) * step
                              : std::numeric_limits<double>::quiet_NaN();
}

int exponent_of(std::vector<double> values) {
  double largest = 0;
  for (const double value : values) largest = std::isfinite(value) ? std::max(largest, std::fabs(value)) : largest;
  return largest == 0 ? 20 : std::clamp(std::ilogb(largest) + 127, 20, 254);
}

bool same(double expected, float got) {
  return std::isnan(expected) ? std::isnan(got) : expected == static_cast<double>(got);
}

std::vector<float> drawn(Random& random, std::size_t count, int spread) {
  std::vector<float> values(count);
  for (float& value : values) {
    const double fraction = static_cast<double>(random.below(1U << 24)) / (1U << 23) - 1;
    value = static_cast<float>(
        std::ldexp(fraction, static_cast<int>(random.below(static_cast<std::uint64_t>(spread))) - spread / 2));
  }
  return values;
}

TEST_P(Block8, RoundsToNearestInEachBlock) {
  Random random(1);
  for (const std::size_t count : {0UL, 1UL, 63UL, 64UL, 65UL, 300UL, 1216UL}) {
    std::vector<float> values = drawn(random, count, count % 2 == 0 ? 8 : 120);
    if (count > 70) {
      values[3] = std::numeric_limits<float>::infinity();
      values[5] = -std::numeric_limits<float>::infinity();
      values[64] = std::numeric_limits<float>::quiet_NaN();
      values[66] = std::numeric_limits<float>::denorm_min();
    }
    const std::vector<float> got = unpacked(packed(values), count);
    for (std::size_t begin = 0; begin < count; begin += block8_values) {
      const std::size_t end = std::min(count, begin + block8_values);
      const int exponent = exponent_of(
          {values.begin() + static_cast<std::ptrdiff_t>(begin), values.begin() + static_cast<std::ptrdiff_t>(end)});
      for (std::size_t i = begin; i < end; ++i)
        ASSERT_TRUE(same(rounded(static_cast<double>(values[i]), exponent), got[i]))
            << i << ": " << values[i] << ", " << got[i];
    }
  }
}

TEST_P(Block8, RoundsUpOrDownWithTheRightMean) {
  std::vector<float> values(block8_values, 10.25F);
  values[0] = 127;  // steps of 1
  double sum = 0;
  constexpr int times = 2000;
  for (int i = 0; i < times; ++i) {
    const std::vector<float> got =
        unpacked(packed(values, 77, static_cast<std::uint64_t>(i) * block8_values), values.size());
    EXPECT_EQ(127, got[0]) << "what needs no rounding has none";
    for (std::size_t k = 1; k < got.size(); ++k) {
      ASSERT_TRUE(got[k] == 10 || got[k] == 11);
      sum += static_cast<double>(got[k]);
    }
  }
  // The chances are multiples of 1/256. 3 standard deviations.
  const double count = times * (block8_values - 1.0);
  EXPECT_NEAR(10.25, sum / count, 1.0 / 512 + 3 * std::sqrt(0.25 * 0.75 / count));
}

// A repeat is the same, whatever the packets' length, on whichever processor.
TEST_P(Block8, ChancesFollowFromKeyAndPlace) {
  Random random(3);
  const std::vector<float> values = drawn(random, 640, 4);
  const Bytes whole = packed(values, 5, 64);
  EXPECT_EQ(whole, packed(values, 5, 64));
  EXPECT_NE(whole, packed(values, 6, 64));
  EXPECT_NE(whole, packed(values, 5, 128));
  Bytes parts = packed({values.begin(), values.begin() + 128}, 5, 64);
  const Bytes rest = packed({values.begin() + 128, values.end()}, 5, 192);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(whole, parts);
  std::uint64_t hash = 0;
  for (const std::byte byte : whole) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3ULL;
  EXPECT_EQ(14151609967219139891ULL, hash) << "as ever";
}

TEST_P(Block8, AddsInOrderAndRoundsOnce) {
  Random random(4);
  for (const std::size_t ranks : {1UL, 2UL, 5UL, 300UL}) {
    const std::size_t count = 150;
    std::vector<Bytes> all;
    std::vector<const std::byte*> sources;
    std::vector<float> sums(count, 0.0F);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::vector<float> values = drawn(random, count, rank % 3 == 0 ? 60 : 6);
      if (rank == 1) values[100] = std::numeric_limits<float>::infinity();
      all.push_back(packed(values));
      const std::vector<float> taken = unpacked(all.back(), count);
      for (std::size_t i = 0; i < count; ++i) sums[i] += taken[i];
    }
    for (const Bytes& each : all) sources.push_back(each.data());
    Bytes out(all[0].size());
    sum_block8(out.data(), sources, out.size());
    for (const std::uint32_t divisor : {1U, 3U}) {
      const std::vector<float> got = unpacked(out, count, divisor);
      for (std::size_t begin = 0; begin < count; begin += block8_values) {
        const std::size_t end = std::min(count, begin + block8_values);
        const int exponent = exponent_of(
            {sums.begin() + static_cast<std::ptrdiff_t>(begin), sums.begin() + static_cast<std::ptrdiff_t>(end)});
        for (std::size_t i = begin; i < end; ++i) {
          const float expected =
              static_cast<float>(rounded(static_cast<double>(sums[i]), exponent)) / static_cast<float>(divisor);
          ASSERT_TRUE(same(static_cast<double>(expected), got[i])) << ranks << " ranks, " << i;
        }
      }
    }
  }
}

// On the way a sum may be larger than any float.
TEST_P(Block8, OnlyTheSumItselfOverflows) {
  constexpr float most = 3e38F;
  const std::vector<std::vector<float>> ranks{{most, most}, {most, most}, {-most, most}};
  std::vector<Bytes> all;
  std::vector<const std::byte*> sources;
  for (const auto& rank : ranks) all.push_back(packed(rank));
  for (const Bytes& each : all) sources.push_back(each.data());
  Bytes out(all[0].size());
  sum_block8(out.data(), sources, out.size());
  const std::vector<float> got = unpacked(out, 2);
  EXPECT_NEAR(3e38, static_cast<double>(got[0]), 0x1p122);
  EXPECT_TRUE(std::isnan(got[1]));
}

// What a stranger sends is read within its bounds, whatever it says.
TEST_P(Block8, TakesAnyBytes) {
  Random random(5);
  for (std::size_t bytes = 1; bytes < 140; ++bytes) {
    Bytes one(bytes), other(bytes), out(bytes);
    for (Bytes* each : {&one, &other}) {
      for (std::byte& byte : *each) byte = static_cast<std::byte>(random.below(256));
    }
    const std::byte* const sources[] = {one.data(), other.data()};
    sum_block8(out.data(), sources, bytes);
    const auto exponent = std::to_integer<int>(out[0]);
    EXPECT_TRUE(exponent >= 20 && exponent <= 254) << exponent;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, Block8, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace netsum::kernels
