#include "oracle/exact.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "oracle/narrow.h"

namespace netsum::oracle {
namespace {

template <class T>
[[nodiscard]] T at(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void put(std::byte* out, T value) {
  std::memcpy(out, &value, sizeof(T));
}

[[nodiscard]] std::int64_t integer_at(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::int64:
      return at<std::int64_t>(from);
    case DType::int32:
      return at<std::int32_t>(from);
    case DType::int16:
      return at<std::int16_t>(from);
    case DType::int8:
      return at<std::int8_t>(from);
    case DType::boolean:
      return at<std::uint8_t>(from) != 0 ? 1 : 0;
    default:
      return at<std::uint8_t>(from);
  }
}

[[nodiscard]] bool compares(ReduceOp op) {
  return op == ReduceOp::min || op == ReduceOp::max;
}

[[nodiscard]] double combined(ReduceOp op, double a, double b) {
  if (op == ReduceOp::product) return a * b;
  if (!compares(op)) return a + b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  const bool less = a < b || (a == b && std::signbit(a) && !std::signbit(b));
  return less == (op == ReduceOp::min) ? a : b;
}

[[nodiscard]] std::int64_t combined(ReduceOp op, std::int64_t a, std::int64_t b) {
  const auto u = static_cast<std::uint64_t>(a), v = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::product:
      return static_cast<std::int64_t>(u * v);
    case ReduceOp::bit_and:
      return a & b;
    case ReduceOp::bit_or:
      return a | b;
    case ReduceOp::bit_xor:
      return a ^ b;
    default:
      return static_cast<std::int64_t>(u + v);
  }
}

[[nodiscard]] ReduceOp among_booleans(ReduceOp op) {
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

}  // namespace

bool is_exact(ReduceOp op, DType dtype) {
  const bool sums = op == ReduceOp::sum || op == ReduceOp::avg;
  return !sums || !is_float(dtype) || dtype == DType::float64;
}

double value_at(DType dtype, const std::byte* from) {
  if (dtype == DType::float64) return at<double>(from);
  return dtype == DType::float32 ? static_cast<double>(at<float>(from)) : narrow_value(dtype, at<std::uint16_t>(from));
}

void put_float(DType dtype, std::byte* out, double value) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  if (dtype == DType::float64) return put(out, value);
  const auto rounded = static_cast<float>(value);
  if (dtype == DType::float32) return put(out, rounded);
  put(out, nearest_narrow(dtype, static_cast<double>(rounded)));
}

void reduce_exactly(ReduceOp op, DType dtype, std::span<const std::span<const std::byte>> inputs,
                    std::span<std::byte> result) {
  const std::size_t width = bytes_of(dtype);
  const bool average = op == ReduceOp::avg;
  if (dtype == DType::boolean) op = among_booleans(op);
  for (std::size_t i = 0; i < result.size(); i += width) {
    std::byte* const out = result.data() + i;
    if (is_float(dtype)) {
      double value = value_at(dtype, inputs[0].data() + i);
      for (const auto& input : inputs.subspan(1)) value = combined(op, value, value_at(dtype, input.data() + i));
      put_float(dtype, out, average ? value / static_cast<double>(inputs.size()) : value);
      continue;
    }
    std::int64_t value = integer_at(dtype, inputs[0].data() + i);
    for (const auto& input : inputs.subspan(1)) value = combined(op, value, integer_at(dtype, input.data() + i));
    std::memcpy(out, &value, width);  // little-endian: the lowest bits
    if (!average) continue;
    value = integer_at(dtype, out) / static_cast<std::int64_t>(inputs.size());
    std::memcpy(out, &value, width);
  }
}

}  // namespace netsum::oracle
