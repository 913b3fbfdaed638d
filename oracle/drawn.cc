#include "oracle/drawn.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "oracle/drawn_sums.h"
#include "oracle/exact.h"

namespace netsum::oracle {
namespace {

constexpr std::size_t at_once = 256;

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

void Verdict::merge(const Verdict& other) {
  wrong += other.wrong;
  max_abs_error = std::max(max_abs_error, other.max_abs_error);
  error_bound = std::max(error_bound, other.error_bound);
  max_error_over_bound = std::max(max_error_over_bound, other.max_error_over_bound);
}

bool Drawn::sums() const {
  const bool adds = reduction_.op == ReduceOp::sum || reduction_.op == ReduceOp::avg;
  return adds && (reduction_.dtype == DType::int32 || !is_exact(reduction_.op, reduction_.dtype));
}

void Drawn::fill(std::span<std::byte> tensor, std::uint32_t rank, std::uint64_t iteration) const {
  if (sums()) return fill_sums(seed_, reduction_, magnitude_, tensor, rank, iteration);
  fill_exactly(tensor, rank, iteration, 0);
}

Verdict Drawn::check(std::span<const std::byte> tensor, std::uint64_t iteration) const {
  return sums() ? check_sums(seed_, reduction_, magnitude_, tensor, iteration) : check_exactly(tensor, iteration);
}

void Drawn::fill_exactly(std::span<std::byte> tensor, std::uint32_t rank, std::uint64_t iteration,
                         std::uint64_t first) const {
  const std::size_t width = bytes_of(reduction_.dtype);
  for (std::size_t at = 0; at < tensor.size(); at += width) {
    const std::uint64_t random = mix(drawn_key(seed_, rank, iteration) + first + at / width);
    if (is_float(reduction_.dtype)) {
      put_float(reduction_.dtype, tensor.data() + at, float_of(random, reduction_.op));
    } else {
      const std::uint64_t value = reduction_.dtype == DType::boolean ? random & 1 : random;
      std::memcpy(tensor.data() + at, &value, width);  // little-endian: the lowest bits
    }
  }
}

Verdict Drawn::check_exactly(std::span<const std::byte> tensor, std::uint64_t iteration) const {
  const std::size_t width = bytes_of(reduction_.dtype);
  std::vector<std::vector<std::byte>> inputs(reduction_.ranks, std::vector<std::byte>(at_once * width));
  std::vector<std::span<const std::byte>> views(reduction_.ranks);
  std::vector<std::byte> expected(at_once * width);
  Verdict verdict;
  for (std::size_t begin = 0; begin < tensor.size(); begin += expected.size()) {
    const std::size_t bytes = std::min(expected.size(), tensor.size() - begin);
    for (std::uint32_t place = 0; place < reduction_.ranks; ++place) {
      fill_exactly(std::span(inputs[place]).first(bytes), reduction_.rank_at(place), iteration, begin / width);
      views[place] = std::span(inputs[place]).first(bytes);
    }
    reduce_exactly(reduction_.op, reduction_.dtype, views, std::span(expected).first(bytes));
    for (std::size_t at = 0; at < bytes; at += width) {
      if (std::memcmp(expected.data() + at, tensor.data() + begin + at, width) != 0) ++verdict.wrong;
    }
  }
  return verdict;
}

}  // namespace netsum::oracle
