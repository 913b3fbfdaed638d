// Quantiles of repeated measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace netsum::app {

[[nodiscard]] inline double quantile(std::vector<double> values, double share) {  // nearest rank
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(share * static_cast<double>(values.size()) + 0.999999);
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

[[nodiscard]] inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace netsum::app
