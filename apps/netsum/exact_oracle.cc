#include "exact_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "oracle/exact.h"

namespace netsum::app {
namespace {

constexpr std::size_t at_once = 256;

[[nodiscard]] std::uint64_t mix(std::uint64_t value) {  // SplitMix64's finalizer
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

[[nodiscard]] bool compares(ReduceOp op) {
  return op == ReduceOp::min || op == ReduceOp::max;
}

// A float of any type, as a double that it represents exactly.
[[nodiscard]] double float_of(std::uint64_t bits, ReduceOp op) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double specials[] = {0.0, -0.0, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()};
  if (compares(op) && bits % 32 == 0) return specials[(bits >> 8) % 5];
  const auto numerator = static_cast<double>(static_cast<std::int64_t>(bits >> 32 & 0x7f) + 64);  // 1 to almost 2
  const double sign = (bits & 1) != 0 ? -1 : 1;
  const int exponent = op == ReduceOp::product ? static_cast<int>(bits >> 8 & 1) : static_cast<int>(bits >> 8 & 7) - 3;
  return sign * std::ldexp(numerator, exponent - 7);
}

}  // namespace

std::uint64_t ExactOracle::bits(std::uint32_t rank, std::uint64_t iteration, std::uint64_t element) const {
  return mix(mix(mix(mix(seed_ + 0x9e3779b97f4a7c15u) + rank) + iteration) + element);
}

void ExactOracle::fill(std::span<std::byte> tensor, std::uint32_t rank, std::uint64_t iteration, std::uint64_t first) const {
  const std::size_t width = bytes_of(dtype_);
  for (std::size_t at = 0; at < tensor.size(); at += width) {
    const std::uint64_t random = bits(rank, iteration, first + at / width);
    if (is_float(dtype_)) {
      oracle::put_float(dtype_, tensor.data() + at, float_of(random, op_));
    } else {
      const std::uint64_t value = dtype_ == DType::boolean ? random & 1 : random;
      std::memcpy(tensor.data() + at, &value, width);  // little-endian: the lowest bits
    }
  }
}

Verdict ExactOracle::check(std::span<const std::byte> tensor, std::uint64_t iteration) const {
  const std::size_t width = bytes_of(dtype_);
  std::vector<std::vector<std::byte>> inputs(world_size_, std::vector<std::byte>(at_once * width));
  std::vector<std::span<const std::byte>> views(world_size_);
  std::vector<std::byte> expected(at_once * width);
  Verdict verdict;
  for (std::size_t begin = 0; begin < tensor.size(); begin += expected.size()) {
    const std::size_t bytes = std::min(expected.size(), tensor.size() - begin);
    for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
      fill(std::span(inputs[rank]).first(bytes), rank, iteration, begin / width);
      views[rank] = std::span(inputs[rank]).first(bytes);
    }
    oracle::reduce_exactly(op_, dtype_, views, std::span(expected).first(bytes));
    for (std::size_t at = 0; at < bytes; at += width) {
      if (std::memcmp(expected.data() + at, tensor.data() + begin + at, width) != 0) ++verdict.wrong;
    }
  }
  return verdict;
}

}  // namespace netsum::app
