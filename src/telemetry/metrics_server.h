// A Prometheus endpoint: a scrape collects a report, unless the last one is less than a tenth of a second old.
#pragma once

#include <functional>
#include <string>

#include "telemetry/page_server.h"
#include "telemetry/report.h"

namespace netsum::telemetry {

// The address of a daemon's metrics. `metrics`: "HOST:PORT", or only "PORT" for the host of `listen`, or loopback if the
// daemon does not listen.
[[nodiscard]] std::string metrics_address(const std::string& metrics, const std::string& listen);

class MetricsServer {
 public:
  // "HOST:PORT". Throws Error: bad_argument, refused (address in use).
  MetricsServer(const std::string& listen, std::function<Report()> collect);
  [[nodiscard]] std::string address() const { return server_.address(); }

 private:
  PageServer server_;
};

}  // namespace netsum::telemetry
