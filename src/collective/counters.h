// What the reports of aggregators and parameter servers have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "telemetry/report.h"
#include "transport/transport.h"
#include "wire/parse_error.h"

namespace netsum::collective {

[[nodiscard]] inline telemetry::Counters counters_of(const transport::Counters& t) {
  return {{"packets_received", t.packets_received},
          {"packets_sent", t.packets_sent},
          {"wire_bytes_received", t.wire_bytes_received},
          {"wire_bytes_sent", t.wire_bytes_sent},
          {"dropped_injected", t.dropped_injected},
          {"send_failures", t.send_failures},
          {"truncated", t.truncated}};
}

// `malformed`: by wire::ParseError.
inline void append_malformed(telemetry::Counters& counters, const std::uint64_t (&malformed)[wire::parse_error_kinds]) {
  for (std::size_t i = 1; i < wire::parse_error_kinds; ++i) {
    counters.emplace_back(std::string("dropped_malformed_") + wire::to_string(static_cast<wire::ParseError>(i)),
                          malformed[i]);
  }
}

// Over lanes: the same counters in the same order.
inline void add(telemetry::Counters& sum, const telemetry::Counters& more) {
  if (sum.empty()) {
    sum = more;
    return;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i].second += more[i].second;
}

}  // namespace netsum::collective
