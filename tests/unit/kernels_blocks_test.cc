// Floats in blocks of 8 and 4 bits, for every instruction set that this CPU has: bit by bit against arithmetic of the test's
// own.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/kernels.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;
using Bytes = std::vector<std::byte>;

class Blocks : public ::testing::TestWithParam<std::tuple<std::int64_t, DType>> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(std::get<0>(GetParam())); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  const DType type = std::get<1>(GetParam());
  const int bits = type == block4 ? 4 : 8;
  const float most = type == block4 ? 7 : 127;
};

// At an odd address, and nothing around them is written.
Bytes packed(DType type, const std::vector<float>& values, std::uint64_t key = 0, std::uint64_t first = 0) {
  Bytes memory(block_bytes(type, values.size()) + 8, std::byte{0xee});
  to_blocks(type, memory.data() + 3, values.data(), values.size(), key, first);
  EXPECT_TRUE(std::all_of(memory.begin(), memory.begin() + 3, [](std::byte byte) { return byte == std::byte{0xee}; }));
  EXPECT_TRUE(std::all_of(memory.end() - 5, memory.end(), [](std::byte byte) { return byte == std::byte{0xee}; }));
  return {memory.begin() + 3, memory.end() - 5};
}

std::vector<float> unpacked(DType type, const Bytes& blocks, std::size_t count, std::uint32_t divisor = 1) {
  std::vector<float> values(count + 2, 7.0F);
  from_blocks(type, values.data() + 1, blocks.data(), count, divisor);
  EXPECT_TRUE(values.front() == 7.0F && values.back() == 7.0F);
  return {values.begin() + 1, values.end() - 1};
}

// What a double is in a block of this exponent.
double rounded(double value, int exponent, int bits = 8) {
  const double step = std::ldexp(1.0, exponent - 125 - bits), most = (1 << (bits - 1)) - 1;
  return std::isfinite(value) ? std::clamp(std::nearbyint(value / step), -most, most) * step
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

TEST_P(Blocks, RoundsToNearestInEachBlock) {
  Random random(1);
  for (const std::size_t count : {0UL, 1UL, 63UL, 64UL, 65UL, 300UL, 1216UL}) {
    std::vector<float> values = drawn(random, count, count % 2 == 0 ? 8 : 120);
    if (count > 70) {
      values[3] = std::numeric_limits<float>::infinity();
      values[5] = -std::numeric_limits<float>::infinity();
      values[64] = std::numeric_limits<float>::quiet_NaN();
      values[66] = std::numeric_limits<float>::denorm_min();
    }
    const std::vector<float> got = unpacked(type, packed(type, values), count);
    for (std::size_t begin = 0; begin < count; begin += block_values) {
      const std::size_t end = std::min(count, begin + block_values);
      const int exponent = exponent_of(
          {values.begin() + static_cast<std::ptrdiff_t>(begin), values.begin() + static_cast<std::ptrdiff_t>(end)});
      for (std::size_t i = begin; i < end; ++i)
        ASSERT_TRUE(same(rounded(static_cast<double>(values[i]), exponent, bits), got[i]))
            << i << ": " << values[i] << ", " << got[i];
    }
  }
}

TEST_P(Blocks, RoundsUpOrDownWithTheRightMean) {
  std::vector<float> values(block_values, 5.25F);
  values[0] = most;  // steps of 1
  double sum = 0;
  constexpr int times = 2000;
  for (int i = 0; i < times; ++i) {
    const std::vector<float> got =
        unpacked(type, packed(type, values, 77, static_cast<std::uint64_t>(i) * block_values), values.size());
    EXPECT_EQ(most, got[0]) << "what needs no rounding has none";
    for (std::size_t k = 1; k < got.size(); ++k) {
      ASSERT_TRUE(got[k] == 5 || got[k] == 6);
      sum += static_cast<double>(got[k]);
    }
  }
  // The chances are multiples of 1/256. 3 standard deviations.
  const double count = times * (block_values - 1.0);
  EXPECT_NEAR(5.25, sum / count, 1.0 / 512 + 3 * std::sqrt(0.25 * 0.75 / count));
}

// A repeat is the same, whatever the packets' length, on whichever processor.
TEST_P(Blocks, ChancesFollowFromKeyAndPlace) {
  Random random(3);
  const std::vector<float> values = drawn(random, 640, 4);
  const Bytes whole = packed(type, values, 5, 64);
  EXPECT_EQ(whole, packed(type, values, 5, 64));
  EXPECT_NE(whole, packed(type, values, 6, 64));
  EXPECT_NE(whole, packed(type, values, 5, 128));
  Bytes parts = packed(type, {values.begin(), values.begin() + 128}, 5, 64);
  const Bytes rest = packed(type, {values.begin() + 128, values.end()}, 5, 192);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(whole, parts);
  std::uint64_t hash = 0;
  for (const std::byte byte : whole) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3ULL;
  EXPECT_EQ(type == block4 ? 8239883480830653710ULL : 17239547380509916110ULL, hash) << "as ever";
}

// Adds all blocks of so many ranks, and compares with sums in float32 of what the ranks sent.
void expect_sums(DType type, const std::vector<Bytes>& all, std::size_t count) {
  std::vector<float> sums(count, 0.0F);
  std::vector<const std::byte*> sources;
  for (const Bytes& each : all) {
    const std::vector<float> taken = unpacked(type, each, count);
    for (std::size_t i = 0; i < count; ++i) sums[i] += taken[i];
    sources.push_back(each.data());
  }
  Bytes out(elements_of_sum(type, all[0].size()));
  EXPECT_EQ(out.size(), block_bytes(block8, count) + (type == block4 ? count % 2 : 0));
  sum_blocks(type, out.data(), sources, all[0].size());
  for (const std::uint32_t divisor : {1U, 3U}) {
    const std::vector<float> got = unpacked(block8, out, count, divisor);
    for (std::size_t begin = 0; begin < count; begin += block_values) {
      const std::size_t end = std::min(count, begin + block_values);
      const int exponent =
          exponent_of({sums.begin() + static_cast<std::ptrdiff_t>(begin), sums.begin() + static_cast<std::ptrdiff_t>(end)});
      for (std::size_t i = begin; i < end; ++i) {
        const float expected =
            static_cast<float>(rounded(static_cast<double>(sums[i]), exponent)) / static_cast<float>(divisor);
        ASSERT_TRUE(same(static_cast<double>(expected), got[i])) << all.size() << " ranks, " << i;
      }
    }
  }
}

TEST_P(Blocks, AddsInOrderAndRoundsOnce) {
  Random random(4);
  for (const std::size_t ranks : {1UL, 2UL, 5UL, 300UL}) {
    const std::size_t count = ranks == 5 ? 151 : 150;
    std::vector<Bytes> all;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::vector<float> values = drawn(random, count, rank % 3 == 0 ? 60 : 6);
      if (rank == 1) values[100] = std::numeric_limits<float>::infinity();
      all.push_back(packed(type, values));
    }
    expect_sums(type, all, count);
  }
}

// Blocks whose steps are alike are added as integers, some ranks at a time: here some that just fit and some that do not, at
// any step, with the largest sums and with values that are not finite anywhere.
TEST_P(Blocks, HasTheSameSumsHoweverFarApartStepsAre) {
  Random random(6);
  for (const std::size_t ranks : {2UL, 8UL, 40UL, 1100UL}) {
    for (int spread = 0; spread < 13; ++spread) {
      const int scale = static_cast<int>(random.below(200)) - 100;
      std::vector<Bytes> all;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        std::vector<float> values(block_values);
        for (float& value : values) value = spread % 2 == 0 ? most : std::floor(drawn(random, 1, 2)[0] * most);
        values[random.below(block_values)] = most;
        const int longer = rank % 2 == 0 ? 0 : rank % 4 == 1 ? spread : static_cast<int>(random.below(13)) % (spread + 1);
        const std::size_t strange = random.below(block_values - 2) + 1;
        if (rank == ranks / 2 && spread % 4 == 1) {
          values[strange] = std::numeric_limits<float>::infinity();
          values[strange - 1] = values[strange + 1] = -1;  // whose bits are all 1
        }
        for (float& value : values) value = std::ldexp(value, scale + longer);
        all.push_back(packed(type, values));
      }
      SCOPED_TRACE(spread);
      expect_sums(type, all, block_values);
    }
  }
}

// A sum of more than 2^24 steps loses each 1 that is added to it. It is halfway between two values of 8 bits, so that it
// shows if some are added first.
TEST_P(Blocks, AddsOneByOneWhereFloatsRound) {
  const int spread = type == block4 ? 10 : 7;
  const float longer = std::ldexp(1.0F, spread);
  float rest = std::ldexp(64.5F, 18) / longer;
  std::vector<Bytes> all;
  const auto add = [&](float value, float step) {
    std::vector<float> values(block_values, value * step);
    values[0] = most * step;
    all.push_back(packed(type, values));
  };
  for (; rest > 0; rest -= most) add(std::min(rest, most), longer);
  while (all.size() % 4 != 0) add(0, longer);
  for (int i = 0; i < 4; ++i) add(1, 1);
  expect_sums(type, all, block_values);
}

// On the way a sum may be larger than any float.
TEST_P(Blocks, OnlyTheSumItselfOverflows) {
  constexpr float large = 0x1.8p127F;
  const std::vector<std::vector<float>> ranks{{large, large}, {large, large}, {-large, large}};
  std::vector<Bytes> all;
  std::vector<const std::byte*> sources;
  for (const auto& rank : ranks) all.push_back(packed(type, rank));
  for (const Bytes& each : all) sources.push_back(each.data());
  Bytes out(elements_of_sum(type, all[0].size()));
  sum_blocks(type, out.data(), sources, all[0].size());
  const std::vector<float> got = unpacked(block8, out, 2);
  EXPECT_EQ(large, got[0]);
  EXPECT_TRUE(std::isnan(got[1]));
}

// What a stranger sends is read within its bounds, whatever it says.
TEST_P(Blocks, TakesAnyBytes) {
  Random random(5);
  for (std::size_t bytes = 1; bytes < 140; ++bytes) {
    Bytes one(bytes), other(bytes), out(elements_of_sum(type, bytes));
    for (Bytes* each : {&one, &other}) {
      for (std::byte& byte : *each) byte = static_cast<std::byte>(random.below(256));
    }
    const std::byte* const sources[] = {one.data(), other.data()};
    sum_blocks(type, out.data(), sources, bytes);
    const auto exponent = std::to_integer<int>(out[0]);
    EXPECT_TRUE(exponent >= 20 && exponent <= 254) << exponent;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, Blocks,
                         ::testing::Combine(::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                                            ::testing::Values(block8, block4)),
                         [](const auto& with) {
                           return std::string(hwy::TargetName(std::get<0>(with.param))) +
                                  (std::get<1>(with.param) == block4 ? "4" : "8");
                         });

}  // namespace
}  // namespace netsum::kernels
