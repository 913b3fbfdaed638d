// Every kernel against a scalar reference written from the definition, for every instruction set that this CPU has.

#include "kernels/kernels.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float largest = std::numeric_limits<float>::max();

std::vector<float> special_values() {
  std::vector<float> values = {0.0F,
                               -0.0F,
                               infinity,
                               -infinity,
                               nan_value,
                               -nan_value,
                               largest,
                               -largest,
                               1e-45F,
                               -1e-45F,
                               std::numeric_limits<float>::min()};
  for (int exponent = -149; exponent < 128; ++exponent) {
    const float power = std::ldexp(1.0F, exponent);
    for (const float v : {power, std::nextafter(power, 0.0F), std::nextafter(power, infinity)}) {
      values.push_back(v);
      values.push_back(-v);
    }
  }
  return values;
}

// The tests run once for each instruction set.
class KernelTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

std::int32_t word(const std::byte* payload, std::size_t i) {
  return static_cast<std::int32_t>(load_le<std::uint32_t>(payload + 4 * i));
}

TEST_P(KernelTest, AddWrapsAtEveryLengthAndAlignment) {
  Random random(1);
  for (std::size_t count = 0; count < 300; ++count) {
    const std::size_t a = count % 5, b = count % 7;
    std::vector<std::byte> sum(count * 4 + 16), add(count * 4 + 16);
    for (auto* bytes : {&sum, &add}) {
      for (auto& byte : *bytes) byte = static_cast<std::byte>(random.next());
    }
    const auto before = sum;
    add_int32(sum.data() + a, add.data() + b, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto expected =
          load_le<std::uint32_t>(before.data() + a + 4 * i) + load_le<std::uint32_t>(add.data() + b + 4 * i);
      ASSERT_EQ(expected, load_le<std::uint32_t>(sum.data() + a + 4 * i));
    }
    ASSERT_TRUE(std::equal(before.begin() + static_cast<std::ptrdiff_t>(a + count * 4), before.end(),
                           sum.begin() + static_cast<std::ptrdiff_t>(a + count * 4)));
  }
}

TEST_P(KernelTest, AddInNetworkOrderWrapsAtEveryLengthAndAlignment) {
  Random random(3);
  for (std::size_t count = 0; count < 300; ++count) {
    const std::size_t a = count % 5, b = count % 7;
    std::vector<std::byte> sum(count * 4 + 16), add(count * 4 + 16);
    for (auto* bytes : {&sum, &add}) {
      for (auto& byte : *bytes) byte = static_cast<std::byte>(random.next());
    }
    const auto before = sum;
    add_int32_network(sum.data() + a, add.data() + b, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto expected =
          load_be<std::uint32_t>(before.data() + a + 4 * i) + load_be<std::uint32_t>(add.data() + b + 4 * i);
      ASSERT_EQ(expected, load_be<std::uint32_t>(sum.data() + a + 4 * i));
    }
    ASSERT_TRUE(std::equal(before.begin() + static_cast<std::ptrdiff_t>(a + count * 4), before.end(),
                           sum.begin() + static_cast<std::ptrdiff_t>(a + count * 4)));
  }
}

TEST_P(KernelTest, SwapTurnsEveryWordAndNothingElse) {
  for (std::size_t count = 0; count < 200; ++count) {
    const std::size_t a = count % 5, b = count % 7;
    std::vector<std::byte> from(count * 4 + 16), to(count * 4 + 16, std::byte{0x11});
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
    swap_int32(to.data() + a, from.data() + b, count);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(load_be<std::uint32_t>(from.data() + b + 4 * i), load_le<std::uint32_t>(to.data() + a + 4 * i));
    ASSERT_EQ(std::byte{0x11}, to[a + count * 4]);
    const auto once = to;
    swap_int32(to.data() + a, to.data() + a, count);
    for (std::size_t i = 0; i < count * 4; ++i) ASSERT_EQ(from[b + i], to[a + i]) << "in place, and back";
    ASSERT_EQ(once[a + count * 4], to[a + count * 4]);
  }
}

TEST_P(KernelTest, OrBytes) {
  for (std::size_t count = 0; count < 200; ++count) {
    std::vector<std::byte> to(count + 1, std::byte{0x11}), from(count + 1, std::byte{0x24});
    or_bytes(to.data(), from.data(), count);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(std::byte{0x35}, to[i]);
    ASSERT_EQ(std::byte{0x11}, to[count]);
  }
}

TEST_P(KernelTest, CopyPastCachesCopiesAllAndNothingElse) {
  for (const std::size_t bytes : {0U, 1U, 63U, 64U, 65U, 127U, 128U, 129U, 1000U, 4096U, 70'001U}) {
    for (std::size_t misaligned = 0; misaligned < 5; ++misaligned) {
      std::vector<std::byte> from(bytes + misaligned), to(bytes + 200), expected(to.size());
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
      const std::size_t at = 64 + misaligned * 13;
      copy_past_caches(to.data() + at, from.data() + misaligned, bytes);
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(misaligned), bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
      ASSERT_EQ(to, expected) << bytes << " bytes to +" << at;
    }
  }
}

TEST_P(KernelTest, ScanFindsTheLargestFiniteExponent) {
  Random random(2);
  const auto specials = special_values();
  for (std::size_t count = 0; count < 300; ++count) {
    std::vector<float> values(count);
    for (auto& value : values) value = random.chance(0.2) ? specials[random.below(specials.size())] : 1.0F;
    int exponent = 0;
    bool nonfinite = false;
    for (const float value : values) {
      if (!std::isfinite(value))
        nonfinite = true;
      else
        exponent = std::max(exponent, static_cast<int>(std::bit_cast<std::uint32_t>(value) >> 23 & 0xff));
    }
    const auto scan = scan_block(values.data(), count);
    ASSERT_EQ(exponent, scan.exponent);
    ASSERT_EQ(nonfinite, scan.nonfinite);
    ASSERT_EQ(exponent, largest_exponent(values.data(), count));
  }
}

std::int32_t quantize_reference(float value, FixedPoint format) {
  if (!std::isfinite(value)) return 0;
  const double scaled = std::nearbyint(std::ldexp(static_cast<double>(value), format.shift));
  return static_cast<std::int32_t>(
      std::clamp(scaled, -static_cast<double>(format.limit), static_cast<double>(format.limit)));
}

TEST_P(KernelTest, QuantizeRoundsAndClampsLikeTheDefinition) {
  const auto specials = special_values();
  for (const std::uint32_t ranks : {1U, 2U, 3U, 7U, 8U, 100U, 255U, 256U}) {
    for (int exponent = 0; exponent < 255; ++exponent) {
      const auto format = fixed_point(static_cast<std::uint8_t>(exponent), ranks);
      std::vector<float> values;
      for (const float value : specials) {
        const int own = static_cast<int>(std::bit_cast<std::uint32_t>(value) >> 23 & 0xff);
        if (own <= exponent || own == 255) values.push_back(value);  // what the block's exponent allows
      }
      std::vector<std::byte> payload(values.size() * 4 + 3);
      const bool nonfinite = quantize(payload.data() + 3, values.data(), values.size(), format);
      ASSERT_TRUE(nonfinite);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(quantize_reference(values[i], format), word(payload.data() + 3, i))
            << values[i] << " exponent " << exponent << " ranks " << ranks;
      }
      std::erase_if(values, [](float value) { return !std::isfinite(value); });
      quantize_finite(payload.data() + 1, values.data(), values.size(), format);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(quantize_reference(values[i], format), word(payload.data() + 1, i))
            << values[i] << " exponent " << exponent << " ranks " << ranks;
      }
    }
  }
}

TEST_P(KernelTest, WhatBecomesZeroIsCountedExactly) {
  Random random(11);
  for (const std::uint32_t ranks : {1U, 2U, 5U, 256U}) {
    for (int exponent = 0; exponent < 255; ++exponent) {
      const auto format = fixed_point(static_cast<std::uint8_t>(exponent), ranks);
      std::vector<float> values = special_values();
      const float half = std::ldexp(0.5F, -format.shift);
      for (const float value : {half, -half, std::nextafter(half, 1e38F), -std::nextafter(half, 0.0F)})
        values.push_back(value);
      for (int i = 0; i < 40; ++i) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random.next())));
      values.resize(values.size() - random.below(17));
      std::size_t expected = 0;
      for (const float value : values) {
        expected +=
            std::isfinite(value) && value != 0 && std::ldexp(std::fabs(static_cast<double>(value)), format.shift) <= 0.5;
      }
      ASSERT_EQ(expected, count_nonzero_up_to(values.data(), values.size(), largest_to_zero(format)))
          << "exponent " << exponent << " ranks " << ranks;
    }
  }
}

TEST_P(KernelTest, DequantizeRoundsOnce) {
  Random random(3);
  for (const std::uint32_t ranks : {1U, 2U, 3U, 5U, 8U, 12U, 49U, 127U, 192U, 255U, 256U}) {
    for (int exponent = 0; exponent < 255; ++exponent) {
      const auto format = fixed_point(static_cast<std::uint8_t>(exponent), ranks);
      std::vector<std::int32_t> integers = {0, 1, -1, 2147483647, -2147483647, 16777217, -33554435, 255, format.limit};
      // Averages half way between two floats, which take 25 bits, and beside that.
      const std::int64_t odd = ranks >> std::countr_zero(ranks);
      for (std::int64_t middle = (1 << 24) + 1; middle < 1 << 25 && odd * middle < 2147483647; middle += (1 << 21) + 2) {
        for (const std::int64_t off : {-1, 0, 1}) integers.push_back(static_cast<std::int32_t>(odd * middle + off));
        integers.push_back(static_cast<std::int32_t>(-odd * middle));
      }
      for (int i = 0; i < 24; ++i) integers.push_back(static_cast<std::int32_t>(random.next()) >> random.below(31));
      for (const std::uint32_t divisor : {1U, ranks}) {
        std::vector<float> values(integers.size());
        dequantize(values.data(), std::as_bytes(std::span(integers)).data(), integers.size(), format, divisor);
        for (std::size_t i = 0; i < integers.size(); ++i) {
          const auto expected = static_cast<float>(std::ldexp(static_cast<double>(integers[i]), -format.shift) / divisor);
          ASSERT_EQ(std::bit_cast<std::uint32_t>(expected), std::bit_cast<std::uint32_t>(values[i]))
              << integers[i] << " exponent " << exponent << " divisor " << divisor;
        }
      }
    }
  }
}

TEST_P(KernelTest, DivideRoundsTowardZero) {
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min(), most = std::numeric_limits<std::int32_t>::max();
  Random random(5);
  for (std::uint32_t divisor = 1; divisor <= 1024; ++divisor) {
    const auto by = static_cast<std::int32_t>(divisor);
    std::vector<std::int32_t> values = {0, 1, -1, by - 1, by, by + 1, -by, most, least, least + 1};
    for (const std::int32_t multiple : {most / by * by, least / by * by}) {
      for (const std::int32_t off : {-1, 0, 1}) values.push_back(static_cast<std::int32_t>(std::int64_t{multiple} + off));
    }
    while (values.size() < 37) values.push_back(static_cast<std::int32_t>(random.next()));
    auto quotients = values;
    divide_int32(quotients.data(), quotients.size(), divisor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::int64_t{values[i]} / divisor, quotients[i]) << values[i] << " / " << divisor;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, KernelTest, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

// docs/numerics.md, "No overflow": n ranks that all clamp, at every exponent, for every n that one switch is likely to have,
// and for the borders above.
TEST(FixedPointFormat, NoSumOverflowsForAnyNumberOfRanks) {
  std::vector<std::uint32_t> numbers = {257, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 3600, 4095, 4096};
  for (std::uint32_t ranks = 1; ranks <= 256; ++ranks) numbers.push_back(ranks);
  for (const std::uint32_t ranks : numbers) {
    for (int exponent = 0; exponent < 255; ++exponent) {
      const auto format = fixed_point(static_cast<std::uint8_t>(exponent), ranks);
      ASSERT_LE(std::int64_t{format.limit} * ranks, 2147483647);
      const int e = exponent - 126;  // |x| < 2^e
      const float power = exponent == 0 ? 1e-45F : std::ldexp(1.0F, e - 1);
      const float below = std::nextafter(std::ldexp(1.0F, std::min(e, 127)), 0.0F);  // the largest of that exponent
      for (const float value : {power, std::nextafter(power, 0.0F), std::nextafter(power, infinity), below}) {
        std::byte payload[4];
        ASSERT_FALSE(quantize(payload, &value, 1, format));
        const std::int64_t sum = std::int64_t{word(payload, 0)} * ranks;
        ASSERT_LE(std::abs(sum), 2147483647) << "ranks " << ranks << " exponent " << exponent;
        // Half a unit per rank: rounding, and clamping where it acts; above 256 ranks clamping may take a whole one.
        ASSERT_LE(std::fabs(std::ldexp(static_cast<double>(value), format.shift) - word(payload, 0)), ranks <= 256 ? 0.5 : 1)
            << value << " ranks " << ranks << " exponent " << exponent;
      }
    }
  }
}

TEST(NonfiniteMasks, OrOverRanksGivesWhatTheSumWouldBe) {
  const float values[] = {1.0F, infinity, -infinity, nan_value, 0.0F, infinity, -infinity, nan_value, 2.0F};
  for (const float other : {1.0F, infinity, -infinity, nan_value}) {
    std::byte up[2], down[2], up2[2], down2[2];
    std::vector<float> others(9, other);
    nonfinite_masks(up, down, values, 9);
    nonfinite_masks(up2, down2, others.data(), 9);
    or_bytes(up, up2, 2);
    or_bytes(down, down2, 2);
    std::vector<float> result(9, 5.0F);
    apply_nonfinite_masks(result.data(), up, down, 9);
    for (std::size_t i = 0; i < 9; ++i) {
      const float expected = values[i] + other;
      if (std::isfinite(expected))
        EXPECT_EQ(5.0F, result[i]);
      else if (std::isnan(expected))
        EXPECT_TRUE(std::isnan(result[i]));
      else
        EXPECT_EQ(expected, result[i]);
    }
  }
}

TEST(Halves, Float16RoundTripsAndRoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    float wide = 0;
    std::uint16_t back = 0;
    from_float16(&wide, &half, 1);
    to_float16(&back, &wide, 1);
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    if (exponent == 31 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(wide));
      ASSERT_EQ(31, back >> 10 & 31);
      ASSERT_NE(0, back & 1023);
      continue;
    }
    const double magnitude = exponent == 31  ? static_cast<double>(infinity)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ((half & 0x8000) != 0 ? -magnitude : magnitude, static_cast<double>(wide));
    ASSERT_EQ(half, back);
  }
  // Between neighbours: to the nearer, ties to the even one; beyond 65504 + half a unit: infinity.
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const std::uint16_t pair[] = {static_cast<std::uint16_t>(bits), static_cast<std::uint16_t>(bits + 1)};
    float wide[2];
    from_float16(wide, pair, 2);
    const float middle = wide[0] + (wide[1] - wide[0]) / 2;
    const float points[] = {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, infinity)};
    std::uint16_t rounded[3];
    to_float16(rounded, points, 3);
    ASSERT_EQ(pair[0], rounded[0]) << bits;
    ASSERT_EQ(pair[bits & 1], rounded[1]) << bits;
    ASSERT_EQ(pair[1], rounded[2]) << bits;
  }
  const float beyond[] = {65519.0F, 65520.0F, largest, -largest};
  std::uint16_t rounded[4];
  to_float16(rounded, beyond, 4);
  EXPECT_EQ(0x7bff, rounded[0]);
  EXPECT_EQ(0x7c00, rounded[1]);
  EXPECT_EQ(0x7c00, rounded[2]);
  EXPECT_EQ(0xfc00, rounded[3]);
}

// Of one value at a time no instruction set makes a vector.
TEST_P(KernelTest, Float16InVectorsIsAsOneByOneAlsoForNanAndInfinity) {
  std::vector<std::uint16_t> halves(0x10000 + 5);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(halves.size());
  from_float16(wide.data(), halves.data(), halves.size());
  std::vector<float> values = wide;  // and what is between them
  for (std::size_t i = 0; i + 1 < 0x7c00; ++i) {
    const float middle = wide[i] + (wide[i + 1] - wide[i]) / 2;
    for (const float value : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, infinity)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (const float value : special_values()) values.push_back(value);
  Random random(9);
  for (int i = 0; i < 100'000; ++i) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random.next())));
  std::vector<std::uint16_t> narrow(values.size());
  to_float16(narrow.data(), values.data(), values.size());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    float one = 0;
    from_float16(&one, &halves[i], 1);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(one), std::bit_cast<std::uint32_t>(wide[i])) << halves[i];
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t one = 0;
    to_float16(&one, &values[i], 1);
    ASSERT_EQ(one, narrow[i]) << std::bit_cast<std::uint32_t>(values[i]);
  }
}

TEST(Halves, Bfloat16RoundsToNearestEven) {
  Random random(4);
  for (int i = 0; i < 200'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    std::uint16_t brain = 0;
    to_bfloat16(&brain, &value, 1);
    float wide = 0;
    from_bfloat16(&wide, &brain, 1);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide));
      continue;
    }
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), low = bits & 0xffff;
    std::uint32_t expected = bits >> 16;
    if (low > 0x8000 || (low == 0x8000 && (expected & 1) != 0)) ++expected;
    ASSERT_EQ(expected, brain);
  }
}

}  // namespace
}  // namespace netsum::kernels
