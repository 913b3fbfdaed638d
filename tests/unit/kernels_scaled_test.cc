// The kernels of scaled integers against scalar references that are wide enough not to round, or that round as the
// definition says, for every instruction set that this CPU has, every length to beyond a vector's, and any alignment.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;

constexpr double atp_scale = 1e8;
constexpr std::size_t lengths = 71;  // every tail behind one whole vector of any width
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float largest_float = std::numeric_limits<float>::max();
constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();

class ScaledKernelTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// Words at an odd address, in bytes that nobody may touch.
template <class T>
class Payload {
 public:
  explicit Payload(const std::vector<T>& words, std::size_t at = 3)
      : at_(at), bytes_(at + words.size() * sizeof(T) + guard) {
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0xa5});
    std::ranges::copy(std::as_bytes(std::span(words)), data());
  }
  [[nodiscard]] std::byte* data() { return bytes_.data() + at_; }
  [[nodiscard]] std::vector<T> words() const {
    std::vector<T> words((bytes_.size() - at_ - guard) / sizeof(T));
    const auto to = std::as_writable_bytes(std::span(words));
    std::copy_n(bytes_.data() + at_, to.size(), to.data());
    return words;
  }
  [[nodiscard]] bool only_words_changed() const {
    const auto untouched = [](std::byte byte) { return byte == std::byte{0xa5}; };
    return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(at_), untouched) &&
           std::all_of(bytes_.end() - static_cast<std::ptrdiff_t>(guard), bytes_.end(), untouched);
  }

 private:
  static constexpr std::size_t guard = 64;
  std::size_t at_;
  std::vector<std::byte> bytes_;
};

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(),
                 [](float value) { return std::bit_cast<std::uint32_t>(value); });
  return bits;
}

// What fits, none of it an integer after the scale; some halves, which go to the even neighbour.
std::vector<float> fitting_values() {
  std::vector<float> values = {0.0F, -0.0F, 1e-45F, -1e-45F, 1e-9F, 6e-9F, -6e-9F, 1.5F, -2.25F, 21.47483F, -21.47483F};
  // 10^8 / 2^9 = 195312.5: odd multiples of 2^-9 are halves.
  for (int i = -9; i <= 9; i += 2) values.push_back(std::ldexp(static_cast<float>(i), -9));
  // The last floats before +-2^31 units.
  float edge = 21.47483647F;
  while (static_cast<double>(edge) * atp_scale > 2147483647.0) edge = std::nextafter(edge, 0.0F);
  values.push_back(edge);
  values.push_back(-edge);
  return values;
}

std::vector<float> values_that_do_not_fit() {
  float edge = 21.47483647F;
  while (static_cast<double>(edge) * atp_scale < 2147483648.0) edge = std::nextafter(edge, infinity);
  std::vector<float> values = {edge, -edge, nan_value, -nan_value, infinity, -infinity, largest_float, -largest_float};
  // Just beyond one more exponent each: wherever a wrapped or a cut integer could look like one that fits.
  for (int exponent = 5; exponent < 128; ++exponent) {
    values.push_back(std::ldexp(1.0F, exponent));
    values.push_back(-std::ldexp(1.1F, exponent));
  }
  return values;
}

// 80-bit: exact for 10^8, and it is the only scale that this is called with.
std::optional<std::int32_t> scaled_reference(float value) {
  const long double units = std::rint(static_cast<long double>(value) * 1e8L);
  if (!(units >= least && units <= most)) return {};
  return static_cast<std::int32_t>(units);
}

TEST_P(ScaledKernelTest, QuantizeRoundsToTheNearestAtEveryLengthAndAlignment) {
  Random random(11);
  auto pool = fitting_values();
  for (int i = 0; i < 2000; ++i) {
    const auto random_bits = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    if (scaled_reference(random_bits)) pool.push_back(random_bits);
    pool.push_back(static_cast<float>(static_cast<double>(random.next() >> 11) * 0x1p-53 * 42.9 - 21.45));
  }
  for (std::size_t count = 0; count < lengths; ++count) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<float> values(count);
      std::vector<std::int32_t> expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = pool[random.below(pool.size())];
        expected[i] = *scaled_reference(values[i]);
      }
      Payload<std::int32_t> payload(std::vector<std::int32_t>(count, 7), random.below(8));
      ASSERT_TRUE(quantize_scaled(payload.data(), values.data(), count, atp_scale));
      ASSERT_EQ(expected, payload.words());
      ASSERT_TRUE(payload.only_words_changed());
    }
  }
}

TEST_P(ScaledKernelTest, QuantizeSaysWhatDoesNotFitAndMakesItZero) {
  for (const float bad : values_that_do_not_fit()) {
    ASSERT_FALSE(scaled_reference(bad)) << bad;
    for (const std::size_t count : {1U, 2U, 3U, 7U, 8U, 15U, 62U, 70U}) {
      for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        std::vector<float> values(count, -1.25F);
        std::vector<std::int32_t> expected(count, -125'000'000);
        values[at] = bad;
        expected[at] = 0;
        Payload<std::int32_t> payload(std::vector<std::int32_t>(count, 7));
        ASSERT_FALSE(quantize_scaled(payload.data(), values.data(), count, atp_scale)) << bad;
        ASSERT_EQ(expected, payload.words()) << bad;
        ASSERT_TRUE(payload.only_words_changed());
      }
    }
  }
}

TEST_P(ScaledKernelTest, Int32IsLeftAfterRoundingNotBefore) {
  const struct {
    float value;
    double scale;  // the product is exact: these are halves and wholes at the ends
    bool fits;
    std::int32_t word;
  } cases[] = {{1, 2147483647.0, true, most}, {1, 2147483647.25, true, most},  {1, 2147483647.5, false, 0},
               {1, 2147483648.0, false, 0},   {-1, 2147483648.0, true, least}, {-1, 2147483648.5, true, least},
               {-1, 2147483648.75, false, 0}, {-1, 2147483649.0, false, 0},    {1, 4294967296.0, false, 0},
               {-1, 4294967297.0, false, 0},  {1, 0x1p51, false, 0},           {-1, 0x1p51, false, 0},
               {1, 0x1p52 + 7, false, 0},     {1, 0x1p53, false, 0},           {1, 0x1p63, false, 0},
               {-1, 0x1p63, false, 0},        {1, 0x1p64 + 0x1p20, false, 0}};
  for (const auto& c : cases) {
    for (std::size_t count = 1; count < 40; ++count) {
      const std::vector<float> values(count, c.value);
      Payload<std::int32_t> payload(std::vector<std::int32_t>(count, 7));
      ASSERT_EQ(c.fits, quantize_scaled(payload.data(), values.data(), count, c.scale)) << c.value << " * " << c.scale;
      ASSERT_EQ(std::vector<std::int32_t>(count, c.word), payload.words()) << c.value << " * " << c.scale;
    }
  }
}

// The same bits on every instruction set: a product that a double does not hold is rounded to one before it is rounded to an
// integer, although some could do both at once.
TEST_P(ScaledKernelTest, QuantizeRoundsTheProductToDoubleFirst) {
  Random random(12);
  int differ = 0;
  for (int i = 0; i < 20'000; ++i) {
    const float value = 1.0F + static_cast<float>(random.below(1 << 23)) * 0x1p-23F;
    const double half = static_cast<double>(random.below(1 << 30)) + 0.5;
    const double scale = half / static_cast<double>(value);
    const auto expected = static_cast<std::int32_t>(std::nearbyint(static_cast<double>(value) * scale));
    differ += expected != std::rint(static_cast<long double>(value) * static_cast<long double>(scale));
    const std::vector<float> values(9, value);
    Payload<std::int32_t> payload(std::vector<std::int32_t>(9, 7));
    ASSERT_TRUE(quantize_scaled(payload.data(), values.data(), 9, scale));
    ASSERT_EQ(std::vector<std::int32_t>(9, expected), payload.words()) << value << " * " << scale;
  }
  EXPECT_GT(differ, 1000);
}

std::vector<std::int32_t> edge_integers(Random& random, std::size_t count) {
  const std::int32_t edges[] = {0,        1,         -1,      2,          most,          most - 1, least,     least + 1,
                                most / 2, least / 2, 1 << 30, -(1 << 30), (1 << 24) + 1, 390'625,  -5'859'375};
  std::vector<std::int32_t> words(count);
  for (auto& word : words) {
    word = random.chance(0.4) ? edges[random.below(std::size(edges))]
                              : static_cast<std::int32_t>(random.next()) >> random.below(31);
  }
  return words;
}

TEST_P(ScaledKernelTest, DequantizeDividesOnceInDouble) {
  Random random(13);
  std::vector<double> scales = {atp_scale,     1,    3,    1e-3,  0x1p40 - 1, 0x1p40 + 1,
                                1e8 + 1.0 / 3, 1e30, 1e46, 1e-30, 1e300,      1e-300};
  scales.push_back(0x1p-890);
  for (const double scale : scales) {
    for (const std::uint32_t divisor : {1U, 2U, 3U, 7U, 255U, 256U, 1000U, 4294967295U}) {
      for (std::size_t count = 0; count < lengths; ++count) {
        const auto words = edge_integers(random, count);
        std::vector<float> expected(count);
        for (std::size_t i = 0; i < count; ++i) expected[i] = static_cast<float>(words[i] / (scale * divisor));
        Payload<std::int32_t> payload(words, random.below(8));
        std::vector<float> values(count + 1, 5.0F);
        dequantize_scaled(values.data(), payload.data(), count, scale, divisor);
        ASSERT_EQ(5.0F, values[count]);
        values.pop_back();
        ASSERT_EQ(bits_of(expected), bits_of(values)) << "scale " << scale << " divisor " << divisor;
      }
    }
  }
}

// The integers nearest to where a quotient's float rounds the other way; for the small scales some are there.
TEST_P(ScaledKernelTest, DequantizeIsExactAtAndBesideMidpoints) {
  Random random(14);
  for (const double by : {atp_scale, atp_scale * 3, atp_scale * 255, atp_scale * 256, 3.0, 11.0, 49.0, 61.0}) {
    std::vector<std::int32_t> words;
    for (int i = 0; i < 4000; ++i) {
      const auto value = static_cast<float>(static_cast<std::int32_t>(random.next()) / by);
      const double middle = (static_cast<double>(value) + static_cast<double>(std::nextafter(value, infinity))) / 2;
      words.push_back(static_cast<std::int32_t>(std::clamp(std::nearbyint(middle * by), -0x1p31, 0x1p31 - 1)));
    }
    std::vector<float> values(words.size()), expected(words.size());
    std::ranges::transform(words, expected.begin(), [=](std::int32_t word) { return static_cast<float>(word / by); });
    dequantize_scaled(values.data(), std::as_bytes(std::span(words)).data(), words.size(), by, 1);
    ASSERT_EQ(bits_of(expected), bits_of(values)) << by;
  }
}

TEST_P(ScaledKernelTest, QuantizedAndBackIsWithinHalfAUnit) {
  Random random(15);
  std::vector<float> values(4099), back(values.size());
  for (auto& value : values) value = static_cast<float>(static_cast<double>(random.next() >> 11) * 0x1p-53 * 40 - 20);
  std::vector<std::byte> payload(values.size() * 4);
  ASSERT_TRUE(quantize_scaled(payload.data(), values.data(), values.size(), atp_scale));
  dequantize_scaled(back.data(), payload.data(), values.size(), atp_scale, 1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double ulp =
        static_cast<double>(std::nextafter(std::fabs(back[i]), infinity)) - static_cast<double>(std::fabs(back[i]));
    ASSERT_LE(std::fabs(static_cast<double>(values[i]) - static_cast<double>(back[i])), 0.5 / atp_scale + ulp / 2);
  }
}

TEST_P(ScaledKernelTest, CheckedAddSaysOverflowAndCarryKeepsIt) {
  Random random(16);
  int overflows = 0;
  for (std::size_t count = 0; count < lengths; ++count) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      const auto before = edge_integers(random, count);
      auto add = edge_integers(random, count);
      if (repeat % 2 == 0) {
        // None overflows but, now and then, one: a flag that takes the wrong lanes shows.
        for (std::size_t i = 0; i < count; ++i) add[i] = before[i] < 0 ? 5 : -5;
        if (count != 0 && repeat % 4 == 0) add[random.below(count)] = least;
      }
      std::vector<std::int16_t> high_before(count);
      for (auto& word : high_before) word = static_cast<std::int16_t>(random.below(1000)) - 500;
      Payload<std::int32_t> sum(before, random.below(8)), payload(add, random.below(8));
      Payload<std::int16_t> high(high_before, random.below(8));
      const bool overflow = add_int32_checked(sum.data(), payload.data(), count);
      carry_int32(high.data(), sum.data(), payload.data(), count);
      const auto low = sum.words();
      const auto high_after = high.words();
      bool expected = false;
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t exact = static_cast<std::int64_t>(before[i]) + add[i];
        expected |= exact > most || exact < least;
        ASSERT_EQ(static_cast<std::uint32_t>(exact), static_cast<std::uint32_t>(low[i]));
        const std::int64_t wide =
            (static_cast<std::int64_t>(high_after[i]) - high_before[i]) * (std::int64_t{1} << 32) + low[i];
        ASSERT_EQ(exact, wide) << before[i] << " + " << add[i];
      }
      overflows += expected;
      ASSERT_EQ(expected, overflow);
      ASSERT_TRUE(sum.only_words_changed() && payload.only_words_changed() && high.only_words_changed());
    }
  }
  EXPECT_GT(overflows, 1000);
}

TEST_P(ScaledKernelTest, TheWideSumIsExactInEveryOrder) {
  Random random(17);
  for (const std::size_t vectors : {2U, 3U, 100U, 1024U}) {
    constexpr std::size_t count = 62;
    std::vector<std::vector<std::int32_t>> inputs(vectors);
    std::vector<std::int64_t> exact(count);
    for (auto& input : inputs) {
      input = edge_integers(random, count);
      // Two columns that go one way only, as far as 1024 ranks can.
      input[0] = most;
      input[1] = least;
      for (std::size_t i = 0; i < count; ++i) exact[i] += input[i];
    }
    for (int order = 0; order < 5; ++order) {
      for (std::size_t i = vectors; i > 1; --i) std::swap(inputs[i - 1], inputs[random.below(i)]);
      Payload<std::int32_t> sum(std::vector<std::int32_t>(count, 0));
      Payload<std::int16_t> high(std::vector<std::int16_t>(count, 0));
      for (const auto& input : inputs) {
        const auto bytes = std::as_bytes(std::span(input));
        if (add_int32_checked(sum.data(), bytes.data(), count)) carry_int32(high.data(), sum.data(), bytes.data(), count);
      }
      const auto low = sum.words();
      const auto carried = high.words();
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t wide = static_cast<std::int64_t>(carried[i]) * (std::int64_t{1} << 32) + low[i];
        ASSERT_EQ(exact[i], wide) << vectors << " vectors, column " << i;
      }
    }
  }
}

TEST_P(ScaledKernelTest, AddInt16) {
  Random random(18);
  for (std::size_t count = 0; count < 2 * lengths; ++count) {
    std::vector<std::int16_t> a(count), b(count), expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      a[i] = static_cast<std::int16_t>(random.next());
      b[i] = static_cast<std::int16_t>(random.next());
      expected[i] = static_cast<std::int16_t>(a[i] + b[i]);
    }
    Payload<std::int16_t> to(a, random.below(8)), from(b, random.below(8));
    add_int16(to.data(), from.data(), count);
    ASSERT_EQ(expected, to.words());
    ASSERT_TRUE(to.only_words_changed());
  }
}

TEST_P(ScaledKernelTest, AllZeroSeesOneBitAnywhere) {
  for (std::size_t count = 0; count < 4 * lengths; ++count) {
    Payload<std::uint8_t> bytes(std::vector<std::uint8_t>(count), count % 9);  // amid bytes that are not zero
    ASSERT_TRUE(all_zero(bytes.data(), count));
    for (std::size_t i = 0; i < count; ++i) {
      bytes.data()[i] = static_cast<std::byte>(1U << (i % 8));
      ASSERT_FALSE(all_zero(bytes.data(), count)) << i << " of " << count;
      bytes.data()[i] = std::byte{0};
    }
  }
}

TEST_P(ScaledKernelTest, SaturatingAddHoldsAtTheEnds) {
  Random random(19);
  for (std::size_t count = 0; count < lengths; ++count) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      auto before = edge_integers(random, count);
      auto add = edge_integers(random, count);
      if (repeat % 2 == 0) {
        // No end but, now and then, one that is reached exactly.
        for (std::size_t i = 0; i < count; ++i) {
          before[i] /= 2;
          add[i] = before[i] < 0 ? 5 : -5;
        }
        if (count != 0 && repeat % 4 == 0) {
          const std::size_t at = random.below(count);
          add[at] = before[at] < 0 ? least - before[at] : most - before[at];
        }
      }
      std::vector<std::int32_t> expected(count);
      bool at_end = false;
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t exact = static_cast<std::int64_t>(before[i]) + add[i];
        const bool stays = before[i] == most || before[i] == least;
        expected[i] = stays ? before[i] : exact > most ? most : exact < least ? least : static_cast<std::int32_t>(exact);
        at_end |= expected[i] == most || expected[i] == least;
      }
      Payload<std::int32_t> sum(before, random.below(8)), payload(add, random.below(8));
      ASSERT_EQ(at_end, add_int32_saturating(sum.data(), payload.data(), count));
      ASSERT_EQ(expected, sum.words());
      ASSERT_TRUE(sum.only_words_changed());
    }
  }
}

// What docs/numerics.md holds against the paper's switch.
TEST_P(ScaledKernelTest, TheSaturatingSumDependsOnTheOrder) {
  const auto sum_of = [](const std::vector<std::int32_t>& addends) {
    std::int32_t sum = 0;
    for (const auto& addend : addends) {
      (void)add_int32_saturating(std::as_writable_bytes(std::span(&sum, 1)).data(),
                                 std::as_bytes(std::span(&addend, 1)).data(), 1);
    }
    return sum;
  };
  EXPECT_EQ(most, sum_of({1 << 30, 1 << 30, -(1 << 30)}));
  EXPECT_EQ(1 << 30, sum_of({1 << 30, -(1 << 30), 1 << 30}));
}

std::vector<float> any_floats(Random& random, std::size_t count) {
  std::vector<float> values(count);
  for (auto& value : values) {
    value = random.chance(0.7) ? static_cast<float>(static_cast<double>(random.next() >> 11) * 0x1p-53 - 0.5)
                               : std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    if (std::isnan(value)) value = largest_float;
  }
  return values;
}

TEST_P(ScaledKernelTest, FloatsAreAddedInDouble) {
  Random random(20);
  for (std::size_t count = 0; count < lengths; ++count) {
    std::vector<double> sum(count + 1, 1.0 / 3), expected(count + 1, 1.0 / 3);
    for (int addend = 0; addend < 10; ++addend) {
      const auto values = any_floats(random, count);
      Payload<float> payload(values, random.below(8));
      add_floats(sum.data(), payload.data(), count);
      for (std::size_t i = 0; i < count; ++i) expected[i] += static_cast<double>(values[i]);
    }
    ASSERT_EQ(expected, sum);
  }
}

TEST_P(ScaledKernelTest, DoublesGoToTheNearestFloat) {
  Random random(21);
  const double edges[] = {0.0,
                          -0.0,
                          1e-45,
                          0x1p-150,
                          0x1.8p-150,
                          -0x1.00001p-130,
                          1e300,
                          -1e300,
                          0x1.ffffffp127,
                          0x1.fffffefffp127,
                          1 + 0x1p-24,
                          1 + 0x1.8p-23,
                          1 + 0x1.000001p-24,
                          1e-320,
                          0.1,
                          static_cast<double>(infinity),
                          -static_cast<double>(infinity)};
  for (std::size_t count = 0; count < lengths; ++count) {
    std::vector<double> sum(count);
    std::vector<float> expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] = edges[random.below(std::size(edges))];
      expected[i] = static_cast<float>(sum[i]);
    }
    Payload<float> payload(std::vector<float>(count, 7), random.below(8));
    const std::vector<double> no_integers(count, std::numeric_limits<double>::quiet_NaN());
    round_to_floats(payload.data(), sum.data(), no_integers.data(), count, 3);
    ASSERT_EQ(bits_of(expected), bits_of(payload.words()));
    ASSERT_TRUE(payload.only_words_changed());
  }
  // Of all NaNs one.
  for (const std::uint64_t bits : {0x7ff8000000000000U, 0xfff8000000000000U, 0x7ff0000000000001U, 0xffff123456789abcU}) {
    const double nan = std::bit_cast<double>(bits);
    Payload<float> payload(std::vector<float>(1));
    round_to_floats(payload.data(), &nan, &nan, 1, 1);
    EXPECT_EQ(0x7fc00000U, std::bit_cast<std::uint32_t>(payload.words()[0]));
  }
}

// Element by element as if all of the packet fitted; and as floats where one does not.
TEST_P(ScaledKernelTest, SumsThatFitAreThoseOfTheirIntegers) {
  Random random(22);
  for (std::size_t count = 0; count < lengths; ++count) {
    const double scale = count % 2 == 0 ? 1e8 : 0x1p20;
    const auto divisor = static_cast<std::uint32_t>(1 + random.below(5));
    std::vector<double> floats(count), integers(count);
    std::vector<std::int64_t> exact(count);
    std::vector<bool> fits(count, true);
    for (int addend = 0; addend < 5; ++addend) {
      std::vector<float> values = any_floats(random, count);
      for (float& value : values) value *= random.chance(0.5) ? 1.0F : 40.0F;
      Payload<float> payload(values, random.below(8));
      add_floats(floats.data(), payload.data(), count);
      add_scaled(integers.data(), payload.data(), count, scale);
      for (std::size_t i = 0; i < count; ++i) {
        Payload<std::int32_t> quantized(std::vector<std::int32_t>(1));
        fits[i] = quantize_scaled(quantized.data(), &values[i], 1, scale) && fits[i];
        exact[i] += quantized.words()[0];
      }
    }
    Payload<float> payload(std::vector<float>(count, 7), random.below(8));
    round_to_floats(payload.data(), floats.data(), integers.data(), count, scale * divisor);
    for (std::size_t i = 0; i < count; ++i) {
      auto expected = static_cast<float>(floats[i]);
      if (fits[i] && exact[i] == static_cast<std::int32_t>(exact[i])) {
        Payload<std::int32_t> sum({static_cast<std::int32_t>(exact[i])});
        dequantize_scaled(&expected, sum.data(), 1, scale, divisor);
      }
      if (std::isnan(expected)) expected = std::numeric_limits<float>::quiet_NaN();
      ASSERT_EQ(std::bit_cast<std::uint32_t>(expected), std::bit_cast<std::uint32_t>(payload.words()[i])) << i;
    }
    ASSERT_TRUE(payload.only_words_changed());
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, ScaledKernelTest, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace netsum::kernels
