// The common part of aggregators' and parameter servers' reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "protocol/netreduce/accelerator.h"
#include "telemetry/report.h"
#include "transport/transport.h"
#include "wire/parse_error.h"

namespace netsum::daemon {

[[nodiscard]] inline telemetry::Counters counters_of(const transport::Counters& t) {
  return {{"packets_received", t.packets_received},
          {"packets_sent", t.packets_sent},
          {"wire_bytes_received", t.wire_bytes_received},
          {"wire_bytes_sent", t.wire_bytes_sent},
          {"dropped_injected", t.dropped_injected},
          {"send_failures", t.send_failures},
          {"truncated", t.truncated},
          {"dropped_kernel", t.dropped_kernel}};
}

[[nodiscard]] inline telemetry::Counters counters_of(const netreduce::RingCounters& c) {
  return {{"packets", c.packets},
          {"bytes", c.bytes},
          {"contributions", c.contributions},
          {"sums", c.sums},
          {"results", c.results},
          {"early_results", c.early},
          {"sums_sent_up", c.sent_up},
          {"totals", c.totals},
          {"repeats_total", c.repeats_total},
          {"headers", c.headers},
          {"headers_sent_on", c.sent_headers},
          {"repeats_answered", c.repeats_answered},
          {"repeats_held", c.repeats_held},
          {"repeats_waiting", c.repeats_waiting},
          {"dropped_icrc", c.dropped_icrc},
          {"dropped_header", c.dropped_header},
          {"dropped_unplaced", c.dropped_unplaced},
          {"dropped_old", c.dropped_old},
          {"dropped_early", c.dropped_early},
          {"dropped_misplaced", c.dropped_misplaced},
          {"dropped_mismatch", c.dropped_mismatch},
          {"dropped_raw", c.dropped_raw},
          {"dropped_shape", c.dropped_shape}};
}

// `malformed`: by wire::ParseError.
inline void append_malformed(telemetry::Counters& counters, const std::uint64_t (&malformed)[wire::parse_error_kinds]) {
  for (std::size_t i = 1; i < wire::parse_error_kinds; ++i) {
    counters.add(std::string("dropped_malformed_") + wire::to_string(static_cast<wire::ParseError>(i)), malformed[i]);
  }
}

}  // namespace netsum::daemon
