// The benchmark's own judge: it must find right results right, and every kind of wrong one wrong.
#include "oracle/drawn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace netsum::oracle {
namespace {

constexpr std::size_t elements = 1003;  // the last block is short

std::vector<float> input(const Drawn& drawn, std::uint32_t rank, std::uint64_t iteration) {
  std::vector<float> values(elements);
  drawn.fill(std::as_writable_bytes(std::span(values)), rank, iteration);
  return values;
}

std::vector<float> rounded_sum(const Drawn& drawn, std::uint32_t ranks, double divisor) {
  std::vector<double> exact(elements);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto values = input(drawn, rank, 2);
    for (std::size_t i = 0; i < elements; ++i) exact[i] += static_cast<double>(values[i]);
  }
  std::vector<float> result(elements);
  for (std::size_t i = 0; i < elements; ++i) result[i] = static_cast<float>(exact[i] / divisor);
  return result;
}

TEST(OracleDrawn, TheRoundedSumIsRight) {
  for (const std::uint32_t ranks : {1U, 2U, 3U, 8U, 256U}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      const Drawn drawn(5, {.op = op, .ranks = ranks});
      const auto result = rounded_sum(drawn, ranks, op == ReduceOp::avg ? ranks : 1);
      const Verdict verdict = drawn.check(std::as_bytes(std::span(result)), 2);
      EXPECT_EQ(verdict.wrong, 0U) << ranks;
      EXPECT_GT(verdict.error_bound, 0);
      EXPECT_LE(verdict.max_error_over_bound, 1);
    }
  }
}

TEST(OracleDrawn, TheBoundIsThatOfBlockFixedPoint) {
  // One rank, 31 - 0 - e bits: the unit is 2^(e - 31), half of it the quantization; then half a unit of the float result.
  const Drawn drawn(5, {});
  auto result = input(drawn, 0, 2);
  float largest = 0;
  for (std::size_t i = 0; i < 256; ++i) largest = std::max(largest, std::fabs(result[i]));
  const int e = std::ilogb(largest) + 1;
  const double quantization = std::ldexp(1.0, e - 32);
  const std::size_t at = 17;
  const double exact = static_cast<double>(result[at]);
  const double bound = quantization + std::fabs(exact) * 0x1p-24;
  result[at] = static_cast<float>(exact + 4 * bound);
  const Verdict verdict = drawn.check(std::as_bytes(std::span(result)), 2);
  EXPECT_EQ(verdict.wrong, 1U);
  EXPECT_NEAR(verdict.max_error_over_bound, 4, 2);
}

// Four ranks with values up to 2^13: up to 2^29 each as integers, so a unit of 2^-16. With one scale for all it is 10^-8,
// whatever the inputs are.
TEST(OracleDrawn, TheBoundOfScaledNumbersFollowsTheLargestInputIfTheScaleDoes) {
  const auto wrong = [](Numbers numbers, float off) {
    const Drawn drawn(5, {.numbers = numbers, .ranks = 4}, 14);
    auto result = rounded_sum(drawn, 4, 1);
    const auto smallest =
        std::min_element(result.begin(), result.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    EXPECT_LT(std::fabs(*smallest), 32);  // its own rounding is a small part of the bound
    *smallest += off;
    return drawn.check(std::as_bytes(std::span(result)), 2).wrong;
  };
  EXPECT_EQ(0U, wrong(Numbers::rescaled, 0));
  EXPECT_EQ(0U, wrong(Numbers::rescaled, 1.9F * 0x1p-16F));
  EXPECT_EQ(1U, wrong(Numbers::rescaled, 2.2F * 0x1p-16F));
  EXPECT_EQ(0U, wrong(Numbers::scaled, 0));
  EXPECT_EQ(1U, wrong(Numbers::scaled, 1.9F * 0x1p-16F));
}

// Two machines of two GPUs: sums of two, added in float32, become integers of which the largest is up to twice, rounded up,
// an input's.
TEST(OracleDrawn, TheBoundOfSumsThatWereAddedBeforeIsThatOfBoth) {
  const auto wrong = [](std::uint32_t added_before, float units) {
    const Drawn drawn(5, {.ranks = 4, .added_before = added_before});
    float largest = 0;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const auto values = input(drawn, rank, 2);
      for (std::size_t i = 0; i < 256; ++i) largest = std::max(largest, std::fabs(values[i]));
    }
    auto result = rounded_sum(drawn, 4, 1);
    const auto smallest =
        std::min_element(result.begin(), result.begin() + 256, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    *smallest += units * std::ldexp(1.0F, std::ilogb(largest) + 1 - 31);
    return drawn.check(std::as_bytes(std::span(result)), 2).wrong;
  };
  EXPECT_EQ(0U, wrong(1, 7.9F));  // 4 values of unit 4, half of it each
  EXPECT_EQ(1U, wrong(1, 40.0F));
  EXPECT_EQ(0U, wrong(2, 7.9F));  // 2 values of unit 8, half of it each: and what float32 may be off
  EXPECT_EQ(1U, wrong(2, 1000.0F));
}

TEST(OracleDrawn, FindsEveryKindOfWrongResult) {
  const Drawn drawn(5, {.ranks = 4});
  const auto right = rounded_sum(drawn, 4, 1);
  const auto wrong_with = [&](auto change) {
    auto result = right;
    change(result);
    return drawn.check(std::as_bytes(std::span(result)), 2).wrong;
  };
  EXPECT_EQ(wrong_with([](auto&) {}), 0U);
  for (const std::size_t at : {std::size_t{0}, std::size_t{255}, std::size_t{256}, elements - 1}) {
    EXPECT_EQ(wrong_with([&](auto& r) { r[at] = std::numeric_limits<float>::quiet_NaN(); }), 1U);
    EXPECT_EQ(wrong_with([&](auto& r) { r[at] = -std::numeric_limits<float>::infinity(); }), 1U);
    EXPECT_EQ(wrong_with([&](auto& r) { r[at] += std::fabs(r[at]) * 0x1p-10F + 0x1p-10F; }), 1U);
  }
  // Chunks exchanged, a rank counted twice, a rank left out, and another iteration's sum.
  EXPECT_GT(wrong_with([](auto& r) { std::swap_ranges(r.begin(), r.begin() + 256, r.begin() + 256); }), 500U);
  const auto first = input(drawn, 0, 2);
  for (const float sign : {1.0F, -1.0F}) {
    EXPECT_GT(wrong_with([&](auto& r) {
                for (std::size_t i = 0; i < elements; ++i) r[i] += sign * first[i];
              }),
              elements * 99 / 100);
  }
  EXPECT_GT(drawn.check(std::as_bytes(std::span(right)), 3).wrong, elements * 99 / 100);
}

TEST(OracleDrawn, IntegersAreExactModulo32Bits) {
  const Drawn drawn(9, {.dtype = DType::int32, .ranks = 3});
  std::vector<std::uint32_t> sum(elements), values(elements);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    drawn.fill(std::as_writable_bytes(std::span(values)), rank, 0);
    for (std::size_t i = 0; i < elements; ++i) sum[i] += values[i];
  }
  EXPECT_EQ(drawn.check(std::as_bytes(std::span(sum)), 0).wrong, 0U);
  ++sum[elements - 1];
  const Verdict verdict = drawn.check(std::as_bytes(std::span(sum)), 0);
  EXPECT_EQ(verdict.wrong, 1U);
  EXPECT_EQ(verdict.max_abs_error, 1);
}

TEST(OracleDrawn, SixteenBitInputsAreExact) {
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const Drawn drawn(3, {.dtype = dtype});
    std::vector<std::uint16_t> halves(elements);
    drawn.fill(std::as_writable_bytes(std::span(halves)), 0, 1);
    EXPECT_EQ(drawn.check(std::as_bytes(std::span(halves)), 1).max_abs_error, 0);
    halves[elements - 1] ^= 0x8000;
    EXPECT_EQ(drawn.check(std::as_bytes(std::span(halves)), 1).wrong, 1U);
    halves[elements - 1] = 0x7fff;  // NaN in both
    EXPECT_EQ(drawn.check(std::as_bytes(std::span(halves)), 1).wrong, 1U);
  }
}

}  // namespace
}  // namespace netsum::oracle
