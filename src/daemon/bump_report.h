// A bump's numbers: for `netsum status` and Prometheus, and in one line at its end. They are read where its packets are
// processed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "protocol/netreduce/bump.h"
#include "telemetry/report.h"
#include "transport/ports/port.h"

namespace netsum::daemon {

// `racks`: with those of datagrams, and of what bumps agree on.
[[nodiscard]] Counters counters_of(const netreduce::Bump& bump, bool racks);
[[nodiscard]] Counters counters_of(std::size_t number, const transport::PortCounters& port);
// Reports a ring as a job, and a message as an operation. `running`: all ranks are there.
[[nodiscard]] telemetry::JobReport report_of(const netreduce::RingConfig& ring, bool running,
                                             const netreduce::Accelerator& accelerator);
// What the accelerator says of a job's ring.
void describe_ring(telemetry::JobReport& report, std::uint64_t incarnation, const netreduce::Accelerator& accelerator);

// Traffic carried so far, in one line.
[[nodiscard]] std::string summary_of(const telemetry::Report& report);

}  // namespace netsum::daemon
