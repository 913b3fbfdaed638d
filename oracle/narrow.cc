#include "oracle/narrow.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace netsum::oracle {

std::uint16_t nearest_narrow(DType dtype, double value) {
  const int fraction_bits = dtype == DType::float16 ? 10 : 7, bias = dtype == DType::float16 ? 15 : 127;
  const auto infinity = static_cast<std::uint16_t>((2 * bias + 1) << fraction_bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1 << (fraction_bits - 1));
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (value == 0) return sign;
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(value), 1 - bias);
  auto steps = static_cast<std::int64_t>(std::nearbyint(std::ldexp(std::fabs(value), fraction_bits - exponent)));
  // `steps` counts from 0 on in units of the exponent's step: the hidden bit adds to the exponent field, as a carry does.
  steps += static_cast<std::int64_t>(exponent + bias - 1) << fraction_bits;
  return static_cast<std::uint16_t>(sign | std::min<std::int64_t>(steps, infinity));
}

std::uint16_t narrow_on_wire(DType dtype, double value) {
  const std::uint16_t nearest = nearest_narrow(dtype, value);
  const bool clamped = std::isfinite(value) && std::isinf(narrow_value(dtype, nearest));
  return static_cast<std::uint16_t>(nearest - (clamped ? 1 : 0));
}

std::uint16_t narrow_sum(DType dtype, std::span<const std::uint16_t> values, std::uint32_t divisor) {
  double exact = -0.0;
  float sum = -0.0F;
  for (const std::uint16_t value : values) {
    exact += narrow_value(dtype, value);
    sum += static_cast<float>(narrow_value(dtype, value));
  }
  const double quotient = exact / divisor;
  if (dtype == DType::float16) return nearest_narrow(dtype, quotient);
  const float result = std::isfinite(sum) ? sum / static_cast<float>(divisor) : static_cast<float>(quotient);
  return nearest_narrow(dtype, static_cast<double>(result));
}

// Shewchuk's sum: doubles that do not overlap and together are the exact sum so far, from the least.
double nearest_sum(std::span<const double> values) {
  std::vector<double> parts;
  double plain = -0.0;
  for (const double value : values) plain += value;
  if (!std::isfinite(plain)) return plain;
  for (double value : values) {
    std::size_t kept = 0;
    for (double part : parts) {
      if (std::fabs(value) < std::fabs(part)) std::swap(value, part);
      const double sum = value + part, rest = part - (sum - value);
      if (rest != 0) parts[kept++] = rest;
      value = sum;
    }
    parts.resize(kept);
    parts.push_back(value);
  }
  double sum = 0, rest = 0;
  while (!parts.empty() && rest == 0) {
    const double whole = sum + parts.back();
    rest = parts.back() - (whole - sum);
    sum = whole;
    parts.pop_back();
  }
  // Halfway between two doubles, what is left decides.
  if (!parts.empty() && std::signbit(rest) == std::signbit(parts.back())) {
    const double further = sum + 2 * rest;
    if (2 * rest == further - sum) sum = further;
  }
  return sum != 0 ? sum : plain == 0 ? plain : 0.0;
}

std::uint16_t narrow_sum_exactly(DType dtype, std::span<const std::uint16_t> values, std::uint32_t divisor) {
  std::vector<double> wide;
  for (const std::uint16_t value : values) wide.push_back(narrow_value(dtype, value));
  return nearest_narrow(dtype, nearest_sum(wide) / divisor);
}

}  // namespace netsum::oracle
