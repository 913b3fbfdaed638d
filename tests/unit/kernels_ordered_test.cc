// Sums over buffered contributions, for every instruction set that this CPU has: bit by bit against a plain loop in rank
// order, and against docs/numerics.md, "Floats added in order".

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;
using Bytes = std::vector<std::byte>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float largest = std::numeric_limits<float>::max();

class OrderedSums : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// Elements that lie anywhere: source r at r + 1 bytes behind an aligned place, so that no two are aligned alike.
struct Contributions {
  Contributions(std::size_t ranks, std::size_t bytes) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      memory.emplace_back(bytes + 16, std::byte{0});
      at.push_back(memory.back().data() + (rank + 1) % 7);
    }
  }
  [[nodiscard]] std::vector<const std::byte*> sources() const { return {at.begin(), at.end()}; }
  std::vector<Bytes> memory;
  std::vector<std::byte*> at;
};

// The sum of `count` elements, which lie unaligned too, and nothing around them is written.
Bytes sum(DType dtype, const Contributions& given, std::size_t count, std::uint32_t divisor = 1) {
  const std::size_t bytes = count * bytes_of(dtype);
  Bytes out(bytes + 16, std::byte{0xee});
  const auto sources = given.sources();
  sum_in_order(dtype, out.data() + 5, sources, count, divisor);
  EXPECT_EQ(Bytes(5, std::byte{0xee}), Bytes(out.begin(), out.begin() + 5));
  EXPECT_EQ(Bytes(11, std::byte{0xee}), Bytes(out.end() - 11, out.end()));
  return {out.begin() + 5, out.end() - 11};
}

float as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

float half_value(DType dtype, std::uint16_t half) {
  float value = 0;
  (dtype == DType::float16 ? from_float16 : from_bfloat16)(&value, &half, 1);
  return value;
}

std::uint16_t half_of(DType dtype, float value) {
  std::uint16_t half = 0;
  (dtype == DType::float16 ? to_float16 : to_bfloat16)(&half, &value, 1);
  return half;
}

// In float32, in order; in double if that left float32.
float plain_sum(const std::vector<float>& values, std::uint32_t divisor) {
  float sum = values[0];
  double wide = static_cast<double>(values[0]);
  for (std::size_t i = 1; i < values.size(); ++i) {
    sum += values[i];
    wide += static_cast<double>(values[i]);
  }
  return std::isfinite(sum) ? sum / static_cast<float>(divisor) : static_cast<float>(wide / divisor);
}

constexpr std::size_t rank_counts[] = {1, 2, 3, 8};

TEST_P(OrderedSums, IntegersWrapAtEveryLengthAndAlignment) {
  Random random(1);
  for (const std::size_t ranks : rank_counts) {
    for (std::size_t count = 0; count <= 300; ++count) {
      Contributions given(ranks, count * 4);
      std::vector<std::uint32_t> expected(count);
      for (std::byte* at : given.at) {
        for (std::size_t i = 0; i < count; ++i) {
          const auto value = static_cast<std::uint32_t>(random.next());
          store_le(at + 4 * i, value);
          expected[i] += value;
        }
      }
      const Bytes whole = sum(DType::int32, given, count);
      const Bytes average = sum(DType::int32, given, count, 3);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(expected[i], load_le<std::uint32_t>(whole.data() + 4 * i));
        const auto wrapped = static_cast<std::int64_t>(static_cast<std::int32_t>(expected[i]));
        ASSERT_EQ(wrapped / 3, static_cast<std::int32_t>(load_le<std::uint32_t>(average.data() + 4 * i))) << "toward zero";
      }
    }
  }
}

TEST_P(OrderedSums, FloatsAreAddedInOrderAtEveryLengthAndAlignment) {
  Random random(2);
  for (const std::size_t ranks : rank_counts) {
    for (std::size_t count = 0; count <= 300; ++count) {
      Contributions given(ranks, count * 4);
      const int spread = static_cast<int>(count % 60);
      for (std::byte* at : given.at) {
        for (std::size_t i = 0; i < count; ++i) {
          const float value = std::ldexp(static_cast<float>(random.below(1U << 24)) - 0x1p23F,
                                         static_cast<int>(random.below(static_cast<std::uint64_t>(spread) + 1)) - 30);
          store_le(at + 4 * i, std::bit_cast<std::uint32_t>(value));
        }
      }
      for (const std::uint32_t divisor : {1U, static_cast<std::uint32_t>(ranks), 7U}) {
        const Bytes result = sum(DType::float32, given, count, divisor);
        for (std::size_t i = 0; i < count; ++i) {
          std::vector<float> values;
          for (const std::byte* at : given.at) values.push_back(as_float(load_le<std::uint32_t>(at + 4 * i)));
          ASSERT_EQ(std::bit_cast<std::uint32_t>(plain_sum(values, divisor)), load_le<std::uint32_t>(result.data() + 4 * i));
          // |y - sum x| <= (n - 1) u T (1 + 2^-10) + ulp / 2
          double exact = 0, magnitudes = 0;
          for (const float value : values) {
            exact += static_cast<double>(value);
            magnitudes += std::fabs(static_cast<double>(value));
          }
          exact /= divisor;
          const double y = static_cast<double>(as_float(load_le<std::uint32_t>(result.data() + 4 * i)));
          const double bound = static_cast<double>(ranks - 1) * 0x1p-24 * magnitudes / divisor * (1 + 0x1p-10) +
                               std::fabs(exact) * 0x1p-24 + 0x1p-150;
          ASSERT_LE(std::fabs(y - exact), bound * (1 + 0x1p-20));
        }
      }
    }
  }
}

TEST_P(OrderedSums, HalvesAreWidenedAddedInOrderAndRoundedOnce) {
  Random random(3);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    for (const std::size_t ranks : rank_counts) {
      for (std::size_t count = 0; count <= 300; ++count) {
        Contributions given(ranks, count * 2);
        for (std::byte* at : given.at) {
          for (std::size_t i = 0; i < count; ++i) {
            // Any bits, also NaN and infinity.
            store_le(at + 2 * i, static_cast<std::uint16_t>(random.next()));
          }
        }
        for (const std::uint32_t divisor : {1U, static_cast<std::uint32_t>(ranks)}) {
          const Bytes result = sum(dtype, given, count, divisor);
          for (std::size_t i = 0; i < count; ++i) {
            std::vector<float> values;
            for (const std::byte* at : given.at) values.push_back(half_value(dtype, load_le<std::uint16_t>(at + 2 * i)));
            const float expected = plain_sum(values, divisor);
            const auto actual = load_le<std::uint16_t>(result.data() + 2 * i);
            if (std::isnan(expected)) {
              ASSERT_TRUE(std::isnan(half_value(dtype, actual)));
            } else {
              ASSERT_EQ(half_of(dtype, expected), actual);
            }
          }
        }
      }
    }
  }
}

// NaN comes out exactly if an input is NaN or infinities of both signs meet; infinity exactly if an input is one, or the sum
// is beyond the largest float. Whatever stands beside it.
TEST_P(OrderedSums, SpecialValuesStayWhereTheyAre) {
  const float values[] = {0,           -0.0F,
                          1,           -1,
                          largest,     -largest,
                          largest / 2, -largest / 2,
                          infinity,    -infinity,
                          1e-45F,      -1e-45F,
                          nan_value,   std::numeric_limits<float>::min()};
  constexpr std::size_t kinds = std::size(values), count = 77;
  for (std::size_t a = 0; a < kinds; ++a) {
    for (std::size_t b = 0; b < kinds; ++b) {
      for (std::size_t c = 0; c < kinds; ++c) {
        const std::size_t place = (a * kinds + b * 5 + c) % count;
        Contributions given(3, count * 4);
        for (std::size_t i = 0; i < count; ++i) {
          const float at_place[] = {values[a], values[b], values[c]};
          for (std::size_t rank = 0; rank < 3; ++rank) {
            const float value = i == place ? at_place[rank] : static_cast<float>(i);
            store_le(given.at[rank] + 4 * i, std::bit_cast<std::uint32_t>(value));
          }
        }
        const std::vector<float> here = {values[a], values[b], values[c]};
        const auto has = [&](auto what) { return std::any_of(here.begin(), here.end(), what); };
        const bool up = has([](float v) { return v == infinity; }), down = has([](float v) { return v == -infinity; });
        const bool is_nan = has([](float v) { return std::isnan(v); }) || (up && down);
        const double exact =
            static_cast<double>(values[a]) + static_cast<double>(values[b]) + static_cast<double>(values[c]);
        for (const std::uint32_t divisor : {1U, 3U}) {
          const Bytes result = sum(DType::float32, given, count, divisor);
          for (std::size_t i = 0; i < count; ++i) {
            const float y = as_float(load_le<std::uint32_t>(result.data() + 4 * i));
            if (i != place) {
              ASSERT_EQ(static_cast<float>(3 * i) / static_cast<float>(divisor), y);
              continue;
            }
            SCOPED_TRACE(std::to_string(values[a]) + " + " + std::to_string(values[b]) + " + " + std::to_string(values[c]));
            ASSERT_EQ(is_nan, std::isnan(y));
            if (is_nan) continue;
            if (up || down) {
              ASSERT_EQ(up ? infinity : -infinity, y);
            } else {
              ASSERT_EQ(std::fabs(exact / divisor) > static_cast<double>(largest), std::isinf(y));
            }
          }
        }
      }
    }
  }
}

TEST_P(OrderedSums, ASumThatLeavesFloat32OnItsWayIsMended) {
  const std::vector<std::pair<std::vector<float>, float>> cases = {
      {{largest, largest, -largest}, largest},
      {{largest, largest, -largest, -largest}, 0},
      {{-largest, -largest, largest, 1}, -largest},
      {{largest, largest, largest, -infinity}, -infinity},
      {{largest, largest}, infinity},
      {{largest, 0x1p103F}, infinity},  // a half of the last place more rounds to what is no float
      {{largest, std::nextafter(0x1p103F, 0.0F)}, largest},
  };
  for (const auto& [inputs, expected] : cases) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{4}, std::size_t{17}, std::size_t{64}, std::size_t{100}}) {
      Contributions given(inputs.size(), count * 4);
      for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        for (std::size_t i = 0; i < count; ++i) {
          store_le(given.at[rank] + 4 * i, std::bit_cast<std::uint32_t>(inputs[rank]));
        }
      }
      const Bytes result = sum(DType::float32, given, count);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(expected, as_float(load_le<std::uint32_t>(result.data() + 4 * i)));
    }
  }
  // An average of what does not fit, but whose quotient does.
  Contributions given(2, 4);
  for (std::byte* at : given.at) store_le(at, std::bit_cast<std::uint32_t>(largest));
  EXPECT_EQ(largest, as_float(load_le<std::uint32_t>(sum(DType::float32, given, 1, 2).data())));
}

TEST_P(OrderedSums, HalvesOverflowWhenTheyAreRoundedAndNotBefore) {
  struct Case {
    DType dtype;
    std::vector<float> inputs;
    std::uint32_t divisor;
    float expected;
  };
  const float most_brain = half_value(DType::bfloat16, 0x7f7f);
  for (const Case& c :
       {Case{DType::float16, {65504, 65504, -65504}, 1, 65504}, Case{DType::float16, {65504, 65504}, 2, 65504},
        Case{DType::float16, {65504, 65504}, 1, infinity}, Case{DType::float16, {65504, 8}, 1, 65504},
        Case{DType::float16, {65504, 16}, 1, infinity}, Case{DType::float16, {-infinity, 65504}, 1, -infinity},
        Case{DType::bfloat16, {most_brain, most_brain, -most_brain}, 1, most_brain},
        Case{DType::bfloat16, {most_brain, most_brain}, 2, most_brain},
        Case{DType::bfloat16, {most_brain, most_brain}, 1, infinity}}) {
    Contributions given(c.inputs.size(), 2);
    for (std::size_t rank = 0; rank < c.inputs.size(); ++rank) store_le(given.at[rank], half_of(c.dtype, c.inputs[rank]));
    const Bytes result = sum(c.dtype, given, 1, c.divisor);
    EXPECT_EQ(c.expected, half_value(c.dtype, load_le<std::uint16_t>(result.data())));
  }
}

// "-0" only if all are.
TEST_P(OrderedSums, ZerosKeepTheirSigns) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    const std::size_t width = bytes_of(dtype);
    for (const bool all : {true, false}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{70}}) {
        Contributions given(3, count * width);
        for (std::size_t rank = 0; rank < 3; ++rank) {
          for (std::size_t i = 0; i < count; ++i) {
            given.at[rank][(i + 1) * width - 1] = all || rank != 1 ? std::byte{0x80} : std::byte{0};
          }
        }
        const Bytes result = sum(dtype, given, count);
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(all ? std::byte{0x80} : std::byte{0}, result[(i + 1) * width - 1]);
        }
      }
    }
  }
}

// The same bits wherever an element lies in its packet, NaN's too, so that neither MTU nor message length shows.
TEST_P(OrderedSums, AnElementsBitsDoNotDependOnItsPlace) {
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    const std::size_t width = bytes_of(dtype);
    Random random(5);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::uint32_t> bits;
      for (int rank = 0; rank < 4; ++rank) {
        auto value = static_cast<std::uint32_t>(random.next());
        if (random.chance(0.5)) value |= width == 4 ? 0x7f800000U : dtype == DType::float16 ? 0x7c00U : 0x7f80U;
        bits.push_back(value);
      }
      Bytes first;
      for (const std::size_t count : {std::size_t{1}, std::size_t{3}, std::size_t{8}, std::size_t{33}, std::size_t{67}}) {
        Contributions given(4, count * width);
        for (std::size_t rank = 0; rank < 4; ++rank) {
          for (std::size_t i = 0; i < count; ++i) std::memcpy(given.at[rank] + i * width, &bits[rank], width);
        }
        const Bytes result = sum(dtype, given, count);
        if (first.empty()) first.assign(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(width));
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_TRUE(std::equal(first.begin(), first.end(), result.begin() + static_cast<std::ptrdiff_t>(i * width)))
              << "element " << i << " of " << count;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, OrderedSums, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace netsum::kernels
