// Metrics in Prometheus' text format (exposition format 0.0.4).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace netsum::telemetry {

enum class MetricType : std::uint8_t { gauge, counter };

struct Sample {
  std::vector<std::pair<std::string, std::string>> labels;  // name, value
  double value = 0;
};

struct MetricFamily {
  std::string name, help;  // the help is one line
  MetricType type = MetricType::gauge;
  std::vector<Sample> samples{};
};

[[nodiscard]] std::string metrics_text(const std::vector<MetricFamily>& families);

}  // namespace netsum::telemetry
