// A daemon over HTTP: its metrics for Prometheus, a web page, and the status that the page reads. Each request collects a
// report, unless the last one is less than a tenth of a second old.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "telemetry/page_server.h"
#include "telemetry/report.h"

namespace netsum::telemetry {

// The address of a daemon's metrics. `metrics`: "HOST:PORT", or only "PORT" for the host of `listen`, or loopback if the
// daemon does not listen.
[[nodiscard]] std::string metrics_address(const std::string& metrics, const std::string& listen);

// What tells the tenants of a daemon apart, for the page.
struct PageAdmittance {
  struct Viewer {
    std::string tenant;  // empty: nobody's
    bool sees_all = true;
  };
  // Who shows this proof for a call "Page" of an empty request (control/credentials.h).
  std::function<Viewer(std::string_view proof)> viewer;
  std::function<std::string()> challenge;  // that proofs are about; empty: the daemon has no tenants
};

class MetricsServer {
 public:
  // "HOST:PORT". Without an admittance everybody sees all jobs. Throws Error: bad_argument, refused (address in use).
  MetricsServer(const std::string& listen, std::function<Report()> collect, PageAdmittance admittance = {},
                std::function<bool()> alive = {});
  [[nodiscard]] std::string address() const { return server_.address(); }

 private:
  PageServer server_;
};

}  // namespace netsum::telemetry
