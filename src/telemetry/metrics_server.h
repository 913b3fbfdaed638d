// A Prometheus endpoint: every scrape collects a fresh report.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "telemetry/report.h"

namespace netsum::telemetry {

class MetricsServer {
 public:
  MetricsServer(const std::string& listen, std::function<Report()> collect);  // throws Error: refused (address in use)
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::telemetry
