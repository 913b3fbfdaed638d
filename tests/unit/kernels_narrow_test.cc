// Sums of 16-bit floats as a switch forms them, for every instruction set that this CPU has: bit by bit against arithmetic
// of the test's own (oracle/narrow.h), for every order that matters.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "oracle/narrow.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;
using oracle::narrow_sum;
using Halves = std::vector<std::uint16_t>;

class NarrowSums : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

constexpr DType dtypes[] = {DType::float16, DType::bfloat16};

// Sources at odd addresses, each another one; and nothing around the result is written.
Halves summed(DType dtype, const std::vector<Halves>& ranks, std::uint32_t divisor) {
  const std::size_t count = ranks[0].size();
  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> sources;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    memory.emplace_back(count * 2 + 16);
    std::byte* const at = memory.back().data() + rank % 7 + 1;
    if (count != 0) std::memcpy(at, ranks[rank].data(), count * 2);
    sources.push_back(at);
  }
  std::vector<std::byte> out(count * 2 + 16, std::byte{0xee});
  sum_gathered(dtype, out.data() + 5, sources, count, divisor);
  EXPECT_TRUE(std::all_of(out.begin(), out.begin() + 5, [](std::byte byte) { return byte == std::byte{0xee}; }));
  EXPECT_TRUE(std::all_of(out.end() - 11, out.end(), [](std::byte byte) { return byte == std::byte{0xee}; }));
  Halves result(count);
  if (count != 0) std::memcpy(result.data(), out.data() + 5, count * 2);
  return result;
}

void expect_sums(DType dtype, const std::vector<Halves>& ranks, std::uint32_t divisor) {
  const Halves result = summed(dtype, ranks, divisor);
  for (std::size_t i = 0; i < result.size(); ++i) {
    Halves column;
    for (const Halves& rank : ranks) column.push_back(rank[i]);
    ASSERT_EQ(narrow_sum(dtype, column, divisor), result[i])
        << to_string(dtype) << ", element " << i << " of " << result.size() << ", " << ranks.size() << " ranks, / "
        << divisor;
  }
}

TEST_P(NarrowSums, RandomBitsAtEveryLength) {
  Random random(1);
  for (const DType dtype : dtypes) {
    for (const std::size_t ranks : {1U, 2U, 3U, 8U, 17U}) {
      for (std::size_t count = 0; count <= 600; count += count < 70 ? 1 : 53) {
        std::vector<Halves> values(ranks, Halves(count));
        const bool wild = random.chance(0.5);  // any bits: NaN and infinities among them
        for (Halves& rank : values) {
          for (auto& value : rank) {
            value = static_cast<std::uint16_t>(random.next());
            if (!wild) value = static_cast<std::uint16_t>((value & 0x83ff) | (dtype == DType::float16 ? 0x3800 : 0x3f00));
          }
        }
        for (const auto divisor : {1U, static_cast<std::uint32_t>(ranks), 7U}) expect_sums(dtype, values, divisor);
      }
    }
  }
}

// Every value with every kind of other one: zeros of both signs, subnormals, the largest, NaN, infinities.
TEST_P(NarrowSums, EveryValueWithEverySpecialOne) {
  for (const DType dtype : dtypes) {
    const auto infinity = static_cast<std::uint16_t>(dtype == DType::float16 ? 0x7c00 : 0x7f80);
    const std::vector<std::uint16_t> others = {0,
                                               0x8000,
                                               1,
                                               0x8001,
                                               static_cast<std::uint16_t>(infinity - 1),
                                               static_cast<std::uint16_t>((infinity - 1) | 0x8000),
                                               infinity,
                                               static_cast<std::uint16_t>(infinity | 0x8000),
                                               static_cast<std::uint16_t>(infinity + 1),
                                               0xffff};
    Halves all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    for (const std::uint16_t other : others) {
      expect_sums(dtype, {all, Halves(all.size(), other)}, 1);
      expect_sums(dtype, {Halves(all.size(), other), all, Halves(all.size(), other)}, 3);
    }
  }
}

// 2^24 times the values has 41 bits, their sums 49: no addition of 256 ranks may round, and every order gives the same.
TEST_P(NarrowSums, Float16IsExactForAsManyRanksAsThereAre) {
  Random random(2);
  std::vector<Halves> ranks(256, Halves(96));
  for (std::size_t i = 0; i < 96; ++i) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      // The largest and their opposites, and one unit that a shorter accumulator would lose.
      ranks[rank][i] = static_cast<std::uint16_t>(rank == i ? 1 : rank % 2 == 0 ? 0x7bff : 0xfbff);
      if (i % 3 == 1) ranks[rank][i] = 0x7bff;
      if (i % 3 == 2) ranks[rank][i] = static_cast<std::uint16_t>(random.next() & 0xfbff);
    }
  }
  for (const auto divisor : {1U, 255U, 256U}) {
    expect_sums(DType::float16, ranks, divisor);
    const Halves in_order = summed(DType::float16, ranks, divisor);
    std::vector<Halves> reversed(ranks.rbegin(), ranks.rend());
    EXPECT_EQ(in_order, summed(DType::float16, reversed, divisor));
  }
}

// A sum that is halfway between two values: to even, from both sides, and not by way of float32.
TEST_P(NarrowSums, Float16IsRoundedOnce) {
  // 2048 + 1 + 2^-24: float32 would lose the last, and the tie would go to 2048.
  expect_sums(DType::float16, {Halves(40, 0x6800), Halves(40, 0x3c00), Halves(40, 0x0001)}, 1);
  EXPECT_EQ(Halves(40, 0x6801), summed(DType::float16, {Halves(40, 0x6800), Halves(40, 0x3c00), Halves(40, 0x0001)}, 1));
  EXPECT_EQ(Halves(40, 0x6800), summed(DType::float16, {Halves(40, 0x6800), Halves(40, 0x3c00), Halves(40, 0)}, 1));
  // 65504 + 16 is halfway to 65536, which is infinity; the average of two is not.
  EXPECT_EQ(Halves(40, 0x7c00), summed(DType::float16, {Halves(40, 0x7bff), Halves(40, 0x4c00)}, 1));
  EXPECT_EQ(Halves(40, 0x7bff), summed(DType::float16, {Halves(40, 0x7bff), Halves(40, 0x7bff)}, 2));
}

// Packets begin anywhere: an element's sum depends on nothing but the element.
TEST_P(NarrowSums, APartHasTheBitsOfTheWhole) {
  Random random(3);
  for (const DType dtype : dtypes) {
    std::vector<Halves> ranks(5, Halves(700));
    for (Halves& rank : ranks) {
      for (auto& value : rank) value = static_cast<std::uint16_t>(random.next());
    }
    const Halves whole = summed(dtype, ranks, 5);
    for (int round = 0; round < 200; ++round) {
      const auto begin = static_cast<std::ptrdiff_t>(random.below(700));
      const auto end = begin + static_cast<std::ptrdiff_t>(random.below(static_cast<std::uint64_t>(700 - begin)));
      std::vector<Halves> part;
      for (const Halves& rank : ranks) part.emplace_back(rank.begin() + begin, rank.begin() + end);
      ASSERT_EQ(Halves(whole.begin() + begin, whole.begin() + end), summed(dtype, part, 5));
    }
  }
}

// float32: in double, in the sources' order, rounded once; all NaN are one.
TEST_P(NarrowSums, PlainFloatsAreRoundedOnce) {
  const float large = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  const auto sum = [](std::vector<float> values, std::uint32_t divisor = 1) {
    std::vector<const std::byte*> sources;
    for (const float& value : values) sources.push_back(reinterpret_cast<const std::byte*>(&value));
    float out = 0;
    sum_gathered(DType::float32, reinterpret_cast<std::byte*>(&out), sources, 1, divisor);
    return std::bit_cast<std::uint32_t>(out);
  };
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  EXPECT_EQ(sum({0x1p24F, 1, 1}), bits(0x1p24F + 2));  // added in float32 each 1 would be lost
  EXPECT_EQ(sum({large, large, -large}), bits(large));
  EXPECT_EQ(sum({large, large}, 2), bits(large));
  EXPECT_EQ(sum({large, large}), bits(infinity));
  EXPECT_EQ(sum({0x1p-149F, 0x1p-149F}), bits(0x1p-148F));
  EXPECT_EQ(sum({-0.0F, -0.0F}), bits(-0.0F));
  EXPECT_EQ(sum({infinity, -infinity}), 0x7fc00000U);
  EXPECT_EQ(sum({std::bit_cast<float>(0xffc12345U), 1}), 0x7fc00000U);
  EXPECT_EQ(sum({1, 1, 1}, 3), bits(1));
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, NarrowSums, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace netsum::kernels
