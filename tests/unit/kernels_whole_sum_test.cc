// The sum of all ranks' tensors at once gives the bits that packets through a switch give, for every instruction set.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernels.h"
#include "oracle/narrow.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;

class WholeSum : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

using Bytes = std::vector<std::byte>;

enum class Kind { ordinary, small, large, special };

Bytes random_tensor(Random& random, DType dtype, std::size_t count, Kind kind) {
  Bytes tensor(count * bytes_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    auto bits = static_cast<std::uint32_t>(random.next());
    if (dtype == DType::float32) {
      float value = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)), -31 - static_cast<int>(random.below(9)));
      if (kind == Kind::small) value = std::ldexp(value, -126);
      if (kind == Kind::large) value = std::ldexp(value, 127);
      bits = std::bit_cast<std::uint32_t>(value);
      if (kind == Kind::special && random.below(3) == 0) {
        constexpr std::uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff, 0xff7fffff, 1, 0x80000000};
        bits = specials[random.below(std::size(specials))];
      }
    }
    std::memcpy(tensor.data() + i * bytes_of(dtype), &bits, bytes_of(dtype));
  }
  return tensor;
}

// As ChunkCodec and the switch have it: each step by the kernel that packets go through.
Bytes in_steps(DType dtype, const std::vector<Bytes>& tensors, std::size_t count, std::uint32_t divisor) {
  const auto ranks = static_cast<std::uint32_t>(tensors.size());
  Bytes result(count * bytes_of(dtype));
  if (dtype == DType::int32) {
    for (const Bytes& tensor : tensors) add_int32(result.data(), tensor.data(), count);
    if (divisor != 1) divide_int32(reinterpret_cast<std::int32_t*>(result.data()), count, divisor);
    return result;
  }
  std::vector<std::vector<float>> widened;
  for (const Bytes& tensor : tensors) {
    auto& values = widened.emplace_back(count);
    const auto* halves = reinterpret_cast<const std::uint16_t*>(tensor.data());
    if (dtype == DType::float32) std::memcpy(values.data(), tensor.data(), count * 4);
    if (dtype == DType::float16) from_float16(values.data(), halves, count);
    if (dtype == DType::bfloat16) from_bfloat16(values.data(), halves, count);
  }
  std::vector<float> sums(count);
  for (std::size_t begin = 0; begin < count; begin += 256) {
    const std::size_t n = std::min<std::size_t>(256, count - begin);
    std::uint8_t exponent = 0;
    bool nonfinite = false;
    for (const auto& values : widened) {
      const BlockScan scan = scan_block(values.data() + begin, n);
      exponent = std::max(exponent, scan.exponent);
      nonfinite |= scan.nonfinite;
    }
    Bytes sum(n * 4), addend(n * 4), up(32), down(32), more_up(32), more_down(32);
    for (const auto& values : widened) {
      static_cast<void>(quantize(addend.data(), values.data() + begin, n, fixed_point(exponent, ranks)));
      add_int32(sum.data(), addend.data(), n);
      nonfinite_masks(more_up.data(), more_down.data(), values.data() + begin, n);
      or_bytes(up.data(), more_up.data(), (n + 7) / 8);
      or_bytes(down.data(), more_down.data(), (n + 7) / 8);
    }
    dequantize(sums.data() + begin, sum.data(), n, fixed_point(exponent, ranks), divisor);
    if (nonfinite) apply_nonfinite_masks(sums.data() + begin, up.data(), down.data(), n);
  }
  auto* halves = reinterpret_cast<std::uint16_t*>(result.data());
  if (dtype == DType::float32) std::memcpy(result.data(), sums.data(), count * 4);
  if (dtype == DType::float16) to_float16(halves, sums.data(), count);
  if (dtype == DType::bfloat16) to_bfloat16(halves, sums.data(), count);
  return result;
}

void compare(Random& random, DType dtype, std::size_t ranks, std::size_t count, Kind kind) {
  std::vector<Bytes> tensors;
  for (std::size_t rank = 0; rank < ranks; ++rank) tensors.push_back(random_tensor(random, dtype, count, kind));
  for (const std::uint32_t divisor : {1U, static_cast<std::uint32_t>(ranks)}) {
    const Bytes expected = in_steps(dtype, tensors, count, divisor);
    std::vector<Bytes> inputs = tensors;
    std::vector<const std::byte*> sources;
    for (const Bytes& input : inputs) sources.push_back(input.data());
    Bytes copy(expected.size());
    Bytes& own = inputs[random.below(ranks)];  // the result takes the place of a source
    sum_all(dtype, own.data(), random.below(2) == 0 ? nullptr : copy.data(), sources, count, divisor);
    ASSERT_TRUE(own == expected) << to_string(dtype) << ", " << ranks << " ranks, " << count << " elements, divisor "
                                 << divisor << ", kind " << static_cast<int>(kind);
    if (copy != Bytes(copy.size())) {
      ASSERT_TRUE(copy == expected);
    }
  }
}

TEST_P(WholeSum, HasTheBitsOfPackets) {
  Random random(7);
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 5U, 8U, 192U}) {
    for (const std::size_t count : {1U, 3U, 31U, 255U, 256U, 257U, 700U}) {
      for (const Kind kind : {Kind::ordinary, Kind::small, Kind::large, Kind::special}) {
        compare(random, DType::float32, ranks, count, kind);
      }
      for (const DType dtype : {DType::int32, DType::float16, DType::bfloat16}) {
        compare(random, dtype, ranks, count, Kind::ordinary);
      }
    }
  }
}

// x and -x are 0 whatever x is, and what was finite stays so, one value at a time and in vectors.
TEST_P(WholeSum, WhatIsFiniteStaysSoInNarrowPackets) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const auto& [travels, largest] : {std::pair{DType::float16, 65504.0F}, std::pair{DType::bfloat16, 0x1.fep127F}}) {
    for (const float beyond : {65520.0F, 3.3961776e38F, std::numeric_limits<float>::max()}) {
      for (const std::size_t count : {1U, 40U}) {
        const std::vector<float> values(count, beyond), opposite(count, -beyond), infinities(count, infinity);
        std::vector<std::uint16_t> halves(count);
        to_narrow_wire(travels, halves.data(), values.data(), count);
        EXPECT_EQ(std::min(static_cast<double>(largest),
                           oracle::narrow_value(travels, oracle::nearest_narrow(travels, static_cast<double>(beyond)))),
                  oracle::narrow_value(travels, halves.back()));
        to_narrow_wire(travels, halves.data(), infinities.data(), count);
        EXPECT_EQ(HUGE_VAL, oracle::narrow_value(travels, halves.back()));
        std::vector<float> sum(count, 1.0F);
        const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(values.data()),
                                            reinterpret_cast<const std::byte*>(opposite.data())};
        sum_all(DType::float32, reinterpret_cast<std::byte*>(sum.data()), nullptr, sources, count, 1, travels);
        EXPECT_EQ(std::vector<float>(count), sum);
      }
    }
  }
}

// As 16-bit packets: in place of a source, and with a copy.
TEST_P(WholeSum, HasTheBitsOfNarrowPackets) {
  Random random(9);
  for (const DType travels : {DType::float16, DType::bfloat16}) {
    for (const DType dtype : {travels, DType::float32}) {
      for (const std::size_t ranks : {1U, 2U, 5U, 64U, 256U}) {
        for (const std::size_t count : {1U, 63U, 64U, 65U, 300U}) {
          std::vector<Bytes> tensors;
          std::vector<const std::byte*> sources;
          std::vector<std::vector<std::uint16_t>> halves(ranks, std::vector<std::uint16_t>(count));
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            tensors.push_back(random_tensor(random, dtype, count, Kind::special));
            if (dtype == travels) {
              std::memcpy(halves[rank].data(), tensors.back().data(), count * 2);
              continue;
            }
            for (std::size_t i = 0; i < count; ++i) {
              float value = 0;
              std::memcpy(&value, tensors.back().data() + i * 4, 4);
              halves[rank][i] = oracle::narrow_on_wire(travels, static_cast<double>(value));
            }
          }
          for (const Bytes& tensor : tensors) sources.push_back(tensor.data());
          const auto divisor = static_cast<std::uint32_t>(count % 2 == 0 ? 1 : ranks);
          Bytes copy(count * bytes_of(dtype)), &own = tensors[random.below(ranks)];
          sum_all(dtype, own.data(), copy.data(), sources, count, divisor, travels);
          EXPECT_TRUE(copy == own);
          for (std::size_t i = 0; i < count; ++i) {
            std::vector<std::uint16_t> column;
            for (const auto& rank : halves) column.push_back(rank[i]);
            const std::uint16_t expected = oracle::narrow_sum(travels, column, divisor);
            if (dtype == travels) {
              std::uint16_t got = 0;
              std::memcpy(&got, own.data() + i * 2, 2);
              ASSERT_EQ(expected, got);
            } else {
              float got = 0;
              std::memcpy(&got, own.data() + i * 4, 4);
              const double value = oracle::narrow_value(travels, expected);
              ASSERT_TRUE(std::isnan(value) ? std::isnan(got) : static_cast<double>(got) == value);
            }
          }
        }
      }
    }
  }
}

TEST_P(WholeSum, HasThemOnBothSidesOfTheClamp) {
  Random random(8);
  for (const std::size_t ranks : {127U, 128U, 129U, 255U, 256U}) {
    for (const Kind kind : {Kind::ordinary, Kind::small, Kind::large, Kind::special}) {
      compare(random, DType::float32, ranks, 300, kind);
    }
    // All ranks at the end of the block's range, where rounding is largest.
    for (const float value : {1.0F, std::nextafter(1.0F, 0.0F), std::numeric_limits<float>::max()}) {
      Bytes tensor(4 * 300);
      for (std::size_t i = 0; i < 300; ++i) std::memcpy(tensor.data() + 4 * i, &value, 4);
      const std::vector<Bytes> tensors(ranks, tensor);
      const std::vector<const std::byte*> sources(ranks, tensor.data());
      Bytes sum(tensor.size());
      sum_all(DType::float32, sum.data(), nullptr, sources, 300, 1);
      EXPECT_TRUE(sum == in_steps(DType::float32, tensors, 300, 1)) << ranks << " ranks of " << value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, WholeSum, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& instance) { return std::string(hwy::TargetName(instance.param)); });

}  // namespace
}  // namespace netsum::kernels
