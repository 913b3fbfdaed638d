// What an all-reduce must give, written without the code under test: docs/numerics.md, "Bound".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace netsum::testing {

struct FloatOracle {
  double sum = 0;    // of the finite elements
  double bound = 0;  // of |result - sum|
  bool nan = false, up = false, down = false;
};

// Oracles of all elements; inputs[rank][element], blocks of 256 from the tensor's start. `divisor`: the world size for avg.
inline std::vector<FloatOracle> float_oracles(const std::vector<std::vector<float>>& inputs, std::uint32_t divisor = 1) {
  const std::size_t elements = inputs[0].size();
  const auto ranks = static_cast<double>(inputs.size());
  const int ranks_log = static_cast<int>(std::ceil(std::log2(ranks)));
  std::vector<FloatOracle> oracles(elements);
  for (std::size_t block = 0; block < elements; block += 256) {
    const std::size_t end = std::min(elements, block + 256);
    int exponent = -126;
    for (const auto& input : inputs) {
      for (std::size_t i = block; i < end; ++i) {
        if (!std::isfinite(input[i]) || std::fabs(input[i]) < std::numeric_limits<float>::min()) continue;
        exponent = std::max(exponent, std::ilogb(input[i]) + 1);
      }
    }
    const double unit = std::ldexp(1.0, exponent - (31 - ranks_log));
    for (std::size_t i = block; i < end; ++i) {
      FloatOracle& oracle = oracles[i];
      for (const auto& input : inputs) {
        const float value = input[i];
        if (std::isnan(value))
          oracle.nan = true;
        else if (std::isinf(value))
          (value > 0 ? oracle.up : oracle.down) = true;
        else
          oracle.sum += static_cast<double>(value);
      }
      if (oracle.up && oracle.down) oracle.nan = true;
      const double quantization = ranks * unit / 2;
      oracle.sum /= divisor;
      // Half an ulp of the result, of the sum before a division too, and of the smallest subnormal.
      oracle.bound = quantization / divisor + (std::fabs(oracle.sum) + quantization) * 0x1p-23 + 0x1p-149;
    }
  }
  return oracles;
}

// Empty if `result` is right, else why not.
inline std::string judge(const FloatOracle& oracle, float result) {
  const auto say = [&](const char* what) {
    return std::string(what) + ": got " + std::to_string(result) + ", finite sum " + std::to_string(oracle.sum);
  };
  if (oracle.nan) return std::isnan(result) ? "" : say("expected NaN");
  if (oracle.up) return std::isinf(result) && result > 0 ? "" : say("expected +inf");
  if (oracle.down) return std::isinf(result) && result < 0 ? "" : say("expected -inf");
  if (std::isnan(result)) return say("unexpected NaN");
  const double largest = static_cast<double>(std::numeric_limits<float>::max());
  if (std::isinf(result)) return std::fabs(oracle.sum) + oracle.bound >= largest ? "" : say("unexpected infinity");
  return std::fabs(static_cast<double>(result) - oracle.sum) <= oracle.bound ? "" : say("outside the bound");
}

}  // namespace netsum::testing
