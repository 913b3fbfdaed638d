// The judge of floats: what is right, what is off by a bit, and what has its bound alone.
#include "oracle/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace netsum::oracle {
namespace {

constexpr std::uint32_t world = 3;
constexpr float infinity = std::numeric_limits<float>::infinity();

// Sums are exact, however they are formed; element 0 is a million times as large as the last ones.
float value_of(std::uint32_t rank, std::size_t i) {
  return i == 0 ? 1.0F : static_cast<float>((rank + 1) * (i % 8)) * 0x1p-22F;
}
float sum_at(std::size_t i) {
  float sum = 0;
  for (std::uint32_t rank = 0; rank < world; ++rank) sum += value_of(rank, i);
  return sum;
}

// Of some such values, after a change to an input and to the result.
struct Change {
  std::size_t element = 0;
  float of_rank_1 = 0, result = 0;
};
std::string judged(Reduction reduction, std::vector<Change> changes) {
  constexpr std::size_t count = 300;
  reduction.ranks = world;
  std::vector<std::vector<float>> tensors(world + 1);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::uint32_t rank = 0; rank < world; ++rank) tensors[rank].push_back(value_of(rank, i));
    tensors[world].push_back(sum_at(i));
  }
  for (const Change& change : changes) {
    tensors[1][change.element] = change.of_rank_1;
    tensors[world][change.element] = change.result;
  }
  std::vector<std::vector<std::byte>> bytes;
  for (const auto& tensor : tensors) {
    const auto view = std::as_bytes(std::span(tensor));
    bytes.emplace_back(view.begin(), view.end());
  }
  return judge(reduction, std::span(bytes).first(world), bytes[world]);
}
std::string judged_off_by_a_bit(const Reduction& reduction) {
  return judged(reduction, {{17, value_of(1, 17), std::nextafter(sum_at(17), 1.0F)}});
}

TEST(OracleJudge, ABitIsWrongThoughItIsWithinTheBound) {
  for (const Numbers numbers : {Numbers::block_fixed_point, Numbers::in_double, Numbers::in_order}) {
    EXPECT_EQ("", judged({.numbers = numbers}, {}));
    EXPECT_NE("", judged_off_by_a_bit({.numbers = numbers}));
  }
  EXPECT_EQ("", judged({.numbers = Numbers::in_racks}, {}));
  EXPECT_EQ("", judged_off_by_a_bit({.numbers = Numbers::in_racks}));
  EXPECT_NE("", judged({.numbers = Numbers::in_racks}, {{17, value_of(1, 17), 1.01F * sum_at(17)}}));
  const Reduction saturating{.numbers = Numbers::rescaled, .saturates = true};
  EXPECT_EQ("", judged_off_by_a_bit(saturating));
}

TEST(OracleJudge, WhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Reduction block{.numbers = Numbers::block_fixed_point};
  EXPECT_EQ("", judged(block, {{17, infinity, infinity}, {18, nan, nan}}));
  EXPECT_NE("", judged(block, {{17, infinity, -infinity}}));
  EXPECT_NE("", judged(block, {{17, infinity, nan}}));
  EXPECT_NE("", judged(block, {{18, nan, sum_at(18)}}));
  EXPECT_NE("", judged(block, {{18, nan, std::copysign(nan, -1.0F)}})) << "another NaN";
  EXPECT_EQ("", judged({.numbers = Numbers::in_order}, {{18, nan, std::copysign(nan, -1.0F)}}));
  Reduction chip = block;
  chip.loses_blocks = true;
  std::vector<Change> lost;
  for (std::size_t i = 0; i < 256; ++i) lost.push_back({i, value_of(1, i), nan});
  lost[17].of_rank_1 = infinity;
  EXPECT_EQ("", judged(chip, lost));
  EXPECT_NE("", judged(block, lost));
  lost[200].result = sum_at(200);
  EXPECT_NE("", judged(chip, lost)) << "an element of the block was not lost";
}

// Integers have no -0, and floats that are added as floats do.
TEST(OracleJudge, TheSignOfZero) {
  constexpr std::size_t zero = 8;  // where all inputs are 0
  EXPECT_NE("", judged({.numbers = Numbers::block_fixed_point}, {{zero, -0.0F, -0.0F}}));
  EXPECT_EQ("", judged({.numbers = Numbers::in_order}, {{zero, -0.0F, 0.0F}}));
  EXPECT_NE("", judged({.numbers = Numbers::in_order}, {{zero, -0.0F, -0.0F}}));
}

}  // namespace
}  // namespace netsum::oracle
