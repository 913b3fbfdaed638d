// A daemon's report: what its registry, its flights and its data plane say, put together.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "control/clock.h"
#include "control/flights.h"
#include "control/journal.h"
#include "control/server.h"
#include "session/registry.h"
#include "telemetry/report.h"

namespace netsum::control {

class Reports {
 public:
  enum class Depth : std::uint8_t {
    jobs,   // their counters and who has joined: for the flight recorder, which knows the rest
    whole,  // with events, hosts, and jobs that have ended
  };

  Reports(const ServerOptions& options, const ServerHooks& hooks, const Journal& journal, const Flights& flights)
      : options_(options), hooks_(hooks), journal_(journal), flights_(flights) {}

  void set_address(std::string address) { address_ = std::move(address); }  // before threads are there
  [[nodiscard]] const std::string& address() const { return address_; }
  void set_certificate_until(std::chrono::system_clock::time_point until) { certificate_until_ = until; }

  // Under the registry's lock.
  [[nodiscard]] telemetry::Report of_registry(session::Registry& registry, Time at, Depth depth) const;
  // Waits for the data plane's counters.
  void complete(telemetry::Report& report, Time at, Depth depth) const;

 private:
  const ServerOptions& options_;
  const ServerHooks& hooks_;
  const Journal& journal_;
  const Flights& flights_;
  const Time started_ = now();
  std::string address_;
  std::atomic<std::chrono::system_clock::time_point> certificate_until_{};
};

}  // namespace netsum::control
