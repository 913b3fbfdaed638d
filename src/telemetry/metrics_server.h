// A Prometheus endpoint: a scrape collects a report, if the last one is not a tenth of a second old.
#pragma once

#include <functional>
#include <string>

#include "telemetry/page_server.h"
#include "telemetry/report.h"

namespace netsum::telemetry {

// Where a daemon that listens at `listen` serves `metrics`: "HOST:PORT", or only "PORT", on the daemon's own host address
// then, or on loopback if it listens nowhere.
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
