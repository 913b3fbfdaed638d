// Reductions of every operation on every type, for every instruction set, against scalar code (oracle/exact.h).
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernels.h"
#include "oracle/exact.h"
#include "support/virtual_network.h"

namespace netsum::kernels {
namespace {

using netsum::testing::Random;
using Bytes = std::vector<std::byte>;

// Bits of any kind: among floats also NaN of any sign and payload, infinities, zeros of both signs and subnormals.
Bytes tensor(Random& random, DType dtype, std::size_t count) {
  const std::size_t width = bytes_of(dtype);
  Bytes bytes(count * width);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = random.next();
    if (is_float(dtype) && random.below(3) == 0) {
      constexpr double specials[] = {
          0.0, -0.0, 1.0, -1.0, 1e-310, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
      oracle::put_float(dtype, reinterpret_cast<std::byte*>(&bits), specials[random.below(std::size(specials))]);
    }
    std::memcpy(bytes.data() + i * width, &bits, width);
  }
  return bytes;
}

class Combine : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// As packets go: to integers and back, or kept and combined in order; and all at once, as in shared memory.
Bytes through_packets(ReduceOp op, DType dtype, const std::vector<Bytes>& tensors, std::size_t count) {
  const auto ranks = static_cast<std::uint32_t>(tensors.size());
  const bool sums = op == ReduceOp::sum || op == ReduceOp::avg;
  Bytes result(tensors[0].size());
  if (is_float(dtype) && (sums || op == ReduceOp::product)) {
    std::vector<const std::byte*> sources;
    for (const Bytes& each : tensors) sources.push_back(each.data());
    combine_in_order(op, dtype, result.data(), sources, count, op == ReduceOp::avg ? ranks : 1);
    return result;
  }
  const DType integers = is_float(dtype) ? integer_as_wide_as(dtype) : dtype;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Bytes values = tensors[rank];
    if (is_float(dtype)) to_ordered(op, dtype, values.data(), values.data(), count);
    if (dtype == DType::boolean) truths(values.data(), values.data(), count);
    if (rank == 0) {
      result = values;
    } else {
      combine(dtype == DType::boolean ? on_booleans(op) : op, integers, result.data(), values.data(), count);
    }
  }
  if (is_float(dtype)) from_ordered(dtype, result.data(), result.data(), count);
  divide(integers, result.data(), count, op == ReduceOp::avg ? ranks : 1);
  return result;
}

TEST_P(Combine, EveryOperationOnEveryTypeIsTheScalarOne) {
  Random random(21);
  for (const DType dtype : dtypes) {
    for (const ReduceOp op : reduce_ops) {
      if (!applies_to(op, dtype) || !oracle::is_exact(op, dtype)) continue;
      for (const std::size_t count : {1U, 7U, 64U, 256U, 300U, 1003U}) {
        std::vector<Bytes> tensors(1 + random.below(5));
        std::vector<const std::byte*> sources;
        for (Bytes& each : tensors) sources.push_back((each = tensor(random, dtype, count)).data());
        const std::vector<std::span<const std::byte>> inputs(tensors.begin(), tensors.end());
        Bytes expected(tensors[0].size()), at_once(expected.size()), copy(expected.size());
        oracle::reduce_exactly(op, dtype, inputs, expected);
        EXPECT_EQ(expected, through_packets(op, dtype, tensors, count)) << to_string(op) << " of " << to_string(dtype);
        reduce_all(op, dtype, at_once.data(), copy.data(), sources, count);
        EXPECT_EQ(expected, at_once) << to_string(op) << " of " << to_string(dtype);
        EXPECT_EQ(expected, copy);
        reduce_all(op, dtype, tensors[0].data(), nullptr, sources, count);
        EXPECT_EQ(expected, tensors[0]) << "in place, " << to_string(op) << " of " << to_string(dtype);
      }
    }
  }
}

// What NaN and the zeros do in a comparison, spelled out.
TEST_P(Combine, ComparesAsDocumented) {
  const auto compared = [](ReduceOp op, float a, float b) {
    const float values[2] = {a, b};
    const std::byte* const sources[] = {reinterpret_cast<const std::byte*>(&values[0]),
                                        reinterpret_cast<const std::byte*>(&values[1])};
    float result = 0;
    reduce_all(op, DType::float32, reinterpret_cast<std::byte*>(&result), nullptr, sources, 1);
    return result;
  };
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (const float other : {infinity, -infinity, 0.0F}) {
      EXPECT_TRUE(std::isnan(compared(op, nan, other)) && std::isnan(compared(op, other, -nan)));
    }
  }
  EXPECT_TRUE(std::signbit(compared(ReduceOp::min, 0.0F, -0.0F)));
  EXPECT_FALSE(std::signbit(compared(ReduceOp::max, -0.0F, 0.0F)));
  EXPECT_EQ(-infinity, compared(ReduceOp::min, -infinity, -1e38F));
  EXPECT_EQ(-1.0F, compared(ReduceOp::max, -2.0F, -1.0F));
}

TEST_P(Combine, AFactorIsRoundedOnce) {
  std::vector<float> values(300, 3.0F);
  scale(DType::float32, reinterpret_cast<std::byte*>(values.data()), values.size(), 1.0 / 3);
  EXPECT_EQ(std::vector<float>(300, 1.0F), values);
  std::vector<double> wide(300, 0.5);
  scale(DType::float64, reinterpret_cast<std::byte*>(wide.data()), wide.size(), 4);
  EXPECT_EQ(std::vector<double>(300, 2.0), wide);
}

INSTANTIATE_TEST_SUITE_P(Targets, Combine, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& instance) { return hwy::TargetName(instance.param); });

}  // namespace
}  // namespace netsum::kernels
