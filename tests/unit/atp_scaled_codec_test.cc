// Tensor memory to ATP's payloads and back, for each kind of call. The kernels' numbers are in kernels_scaled_test.
#include "protocol/atp/scaled_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernels.h"

namespace netsum::atp {
namespace {

using stream::Collective;
using stream::Operation;

constexpr std::uint32_t longest = 8;

Operation reduce(DType dtype, std::size_t elements, void* data, ReduceOp op = ReduceOp::sum) {
  return {.op = op, .dtype = dtype, .elements = elements, .data = data};
}

template <class Word>
std::vector<Word> words(const std::vector<std::byte>& payload) {
  std::vector<Word> list(payload.size() / sizeof(Word));
  std::memcpy(list.data(), payload.data(), payload.size());
  return list;
}
template <class Word>
std::vector<std::byte> bytes(const std::vector<Word>& list) {
  std::vector<std::byte> payload(list.size() * sizeof(Word));
  std::memcpy(payload.data(), list.data(), payload.size());
  return payload;
}

TEST(ScaledCodec, FloatsAreScaledFromTheirOffset) {
  ScaledCodec codec(0, 2, longest);
  std::vector<float> tensor{9, 1.5F, -0.25F, 9};
  std::vector<std::byte> payload(8);
  EXPECT_TRUE(codec.encode(reduce(DType::float32, 4, tensor.data()), 1, 2, 0, payload.data()));
  EXPECT_EQ((std::vector<std::int32_t>{150'000'000, -25'000'000}), words<std::int32_t>(payload));
  codec.decode(reduce(DType::float32, 4, tensor.data()), 1, 2, 0, bytes<std::int32_t>({200'000'000, 50'000'000}).data(),
               false);
  EXPECT_EQ((std::vector<float>{9, 2, 0.5F, 9}), tensor);
}

TEST(ScaledCodec, WhatTheScaleMakesZeroIsCounted) {
  ScaledCodec codec(0, 2, longest);
  // The float above 5e-9 is rounded to one unit of 1e-8; zeros and what is not finite do not count.
  std::vector<float> tensor{4e-9F, -4e-9F, 5e-9F, 5.1e-9F, 0, -0.0F, std::numeric_limits<float>::infinity(), 1};
  std::vector<std::byte> payload(32);
  static_cast<void>(codec.encode(reduce(DType::float32, 8, tensor.data()), 0, 8, 0, payload.data()));
  EXPECT_EQ(words<std::int32_t>(payload)[2], std::lround(5e-9F * 1e8));
  codec.examine(reduce(DType::float32, 8, tensor.data()), 0, 8, 0);
  EXPECT_EQ(codec.underflow().examined, 8U);
  EXPECT_EQ(codec.underflow().underflowed, words<std::int32_t>(payload)[2] == 0 ? 3U : 2U);
  std::vector<std::int32_t> integers(8);
  codec.examine(reduce(DType::int32, 8, integers.data()), 0, 8, 0);
  EXPECT_EQ(codec.underflow().examined, 8U);
}

TEST(ScaledCodec, ValuesThatDoNotFitAreTold) {
  ScaledCodec codec(0, 2, longest);
  std::vector<std::byte> payload(8);
  for (const float value :
       {21.5F, -22.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> tensor{1, value};
    EXPECT_FALSE(codec.encode(reduce(DType::float32, 2, tensor.data()), 0, 2, 0, payload.data())) << value;
    EXPECT_TRUE(codec.encode(reduce(DType::float32, 2, tensor.data()), 0, 1, 0, payload.data()));
    codec.encode_floats(reduce(DType::float32, 2, tensor.data()), 0, 2, payload.data());
    EXPECT_EQ(0, std::memcmp(tensor.data(), payload.data(), 8));  // as they are
  }
}

TEST(ScaledCodec, HalvesAreWidenedAndRoundedBack) {
  ScaledCodec codec(0, 2, longest);
  std::vector<std::byte> payload(8);
  struct {
    DType dtype;
    std::uint16_t one, two;
  } const types[] = {{DType::float16, 0x3c00, 0x4000}, {DType::bfloat16, 0x3f80, 0x4000}};
  for (const auto& type : types) {
    std::vector<std::uint16_t> tensor{0, type.one, type.two};
    const Operation operation = reduce(type.dtype, 3, tensor.data());
    EXPECT_TRUE(codec.encode(operation, 1, 2, 0, payload.data()));
    EXPECT_EQ((std::vector<std::int32_t>{100'000'000, 200'000'000}), words<std::int32_t>(payload));
    codec.encode_floats(operation, 1, 2, payload.data());
    EXPECT_EQ((std::vector<float>{1, 2}), words<float>(payload));
    codec.decode(operation, 0, 2, 0, bytes<std::int32_t>({100'000'000, 200'000'000}).data(), false);
    EXPECT_EQ((std::vector<std::uint16_t>{type.one, type.two, type.two}), tensor);
    codec.decode(operation, 1, 2, 0, bytes<float>({2, 1}).data(), true);
    EXPECT_EQ((std::vector<std::uint16_t>{type.one, type.two, type.one}), tensor);
  }
}

TEST(ScaledCodec, AnAverageIsDividedOnceOnly) {
  ScaledCodec codec(0, 4, longest);
  std::vector<float> tensor(1);
  codec.decode(reduce(DType::float32, 1, tensor.data(), ReduceOp::avg), 0, 1, 0, bytes<std::int32_t>({800'000'000}).data(),
               false);
  EXPECT_EQ(2, tensor[0]);
  codec.decode(reduce(DType::float32, 1, tensor.data(), ReduceOp::avg), 0, 1, 0, bytes<float>({8}).data(), true);
  EXPECT_EQ(8, tensor[0]);  // the server has divided it
  std::vector<std::int32_t> ints(1);
  codec.decode(reduce(DType::int32, 1, ints.data(), ReduceOp::avg), 0, 1, 0, bytes<std::int32_t>({-8}).data(), false);
  EXPECT_EQ(-2, ints[0]);
}

TEST(ScaledCodec, IntegersTravelAsTheyAre) {
  ScaledCodec codec(0, 2, longest);
  std::vector<std::int32_t> tensor{1, INT32_MAX, INT32_MIN};
  const Operation operation = reduce(DType::int32, 3, tensor.data());
  EXPECT_FALSE(uses_scale(operation));
  std::vector<std::byte> payload(8);
  EXPECT_TRUE(codec.encode(operation, 1, 2, 0, payload.data()));
  EXPECT_EQ((std::vector<std::int32_t>{INT32_MAX, INT32_MIN}), words<std::int32_t>(payload));
  codec.decode(operation, 0, 2, 0, payload.data(), false);
  EXPECT_EQ((std::vector<std::int32_t>{INT32_MAX, INT32_MIN, INT32_MIN}), tensor);
}

TEST(ScaledCodec, ABroadcastsLastWordIsReadAndWrittenOnlyInsideItsTensor) {
  std::vector<std::byte> tensor(7, std::byte{1});
  tensor.shrink_to_fit();
  Operation operation{.collective = Collective::broadcast, .elements = 7, .root = 1, .data = tensor.data()};
  ScaledCodec root(1, 2, longest), other(0, 2, longest);
  std::vector<std::byte> payload(8, std::byte{9});
  EXPECT_TRUE(root.encode(operation, 0, 2, 0, payload.data()));
  std::vector<std::byte> expected(7, std::byte{1});
  expected.push_back(std::byte{0});
  EXPECT_EQ(expected, payload);
  payload.assign(8, std::byte{5});
  root.decode(operation, 0, 2, 0, payload.data(), false);
  EXPECT_EQ(std::vector<std::byte>(7, std::byte{1}), tensor);  // the root has it
  other.decode(operation, 1, 1, 0, payload.data(), false);
  EXPECT_EQ(std::byte{1}, tensor[3]);
  EXPECT_EQ(std::byte{5}, tensor[4]);
  EXPECT_EQ(std::byte{5}, tensor[6]);
}

// docs/numerics.md: of powers of two and 10^8 the largest with which no sum leaves int32.
TEST(ScaledCodec, TheScaleForAnExponentIsTheLargestThatCannotOverflow) {
  std::vector<std::byte> payload(4);
  const auto sum_of_all = [&](float value, std::uint32_t ranks, double scale) {
    if (!kernels::quantize_scaled(payload.data(), &value, 1, scale)) return INT64_MAX;
    return std::int64_t{words<std::int32_t>(payload)[0]} * ranks;
  };
  for (std::uint32_t ranks = 1; ranks <= 4096; ++ranks) {
    for (int exponent = 1; exponent <= 254; ++exponent) {
      const double scale = scale_for(static_cast<std::uint8_t>(exponent), ranks);
      // The largest float with this exponent.
      const auto most = std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23 | 0x7fffff);
      ASSERT_LE(sum_of_all(most, ranks, scale), INT32_MAX) << ranks << " ranks, " << exponent;
      ASSERT_GE(sum_of_all(-most, ranks, scale), INT32_MIN) << ranks << " ranks, " << exponent;
      if (scale == largest_scale) continue;
      ASSERT_GT(sum_of_all(most, ranks, 2 * scale), INT32_MAX) << ranks << " ranks, " << exponent;
    }
    ASSERT_EQ(largest_scale, scale_for(0, ranks));
    ASSERT_EQ(largest_scale, scale_for(1, ranks));
  }
  EXPECT_EQ(0x1p15, scale_for(126 + 14, 4));  // 10^4 < 2^14
}

TEST(ScaledCodec, AnExponentIsThatOfTheLargestFiniteValue) {
  ScaledCodec codec(0, 2, longest);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> tensor{1e30F, 1.5F, -300, 0.25F, infinity, std::numeric_limits<float>::quiet_NaN(), 0, 1e-45F};
  const Operation operation = reduce(DType::float32, tensor.size(), tensor.data());
  EXPECT_EQ(127 + 8, codec.exponent_of(operation, 1, 5));
  EXPECT_EQ(127, codec.exponent_of(operation, 1, 1));
  EXPECT_EQ(1, codec.exponent_of(operation, 4, 2));  // nothing finite; but 0 says nothing at all
  EXPECT_EQ(1, codec.exponent_of(operation, 6, 2));
  tensor[0] = std::numeric_limits<float>::max();
  EXPECT_EQ(254, codec.exponent_of(operation, 0, 8));
  std::vector<std::uint16_t> halves{0x4000, 0x3c00};
  EXPECT_EQ(128, codec.exponent_of(reduce(DType::float16, 2, halves.data()), 0, 2));
  halves = {0x7f80, 0xc000};  // infinity, -2
  EXPECT_EQ(128, codec.exponent_of(reduce(DType::bfloat16, 2, halves.data()), 0, 2));
}

TEST(ScaledCodec, AnExponentDecidesTheScaleBothWays) {
  ScaledCodec codec(0, 4, longest);
  std::vector<float> tensor{1e4F, -0.5F};
  std::vector<std::byte> payload(8);
  Operation operation = reduce(DType::float32, 2, tensor.data());
  EXPECT_FALSE(codec.encode(operation, 0, 2, 0, payload.data()));
  EXPECT_TRUE(codec.encode(operation, 0, 2, 140, payload.data()));
  EXPECT_EQ((std::vector<std::int32_t>{10'000 << 15, -(1 << 14)}), words<std::int32_t>(payload));
  EXPECT_FALSE(codec.encode(operation, 0, 2, 130, payload.data()));  // said too little: it does not fit, and that is told
  const auto sums = bytes<std::int32_t>({40'000 << 15, 3 << 14});
  codec.decode(operation, 0, 2, 140, sums.data(), false);
  EXPECT_EQ((std::vector<float>{40'000, 1.5F}), tensor);
  operation.op = ReduceOp::avg;
  codec.decode(operation, 0, 2, 140, sums.data(), false);
  EXPECT_EQ((std::vector<float>{10'000, 0.375F}), tensor);
  codec.decode(operation, 0, 2, 140, bytes<float>({7, 8}).data(), true);  // floats are as they are
  EXPECT_EQ((std::vector<float>{7, 8}), tensor);
}

TEST(ScaledCodec, NothingIsNothing) {
  ScaledCodec codec(0, 2, longest);
  const Operation barrier{.collective = Collective::barrier};
  EXPECT_TRUE(codec.encode(barrier, 0, 0, 0, nullptr));
  codec.decode(barrier, 0, 0, 0, nullptr, false);
}

}  // namespace
}  // namespace netsum::atp
