// DNS service records (RFC 2782) in an answer as a resolver hands it over. No byte of it is believed before it is checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace netsum::transport {

struct ServiceRecord {
  std::uint16_t priority = 0, weight = 0, port = 0;
  std::string host;

  bool operator==(const ServiceRecord&) const = default;
};

// The records, in an order that does not depend on the answer's: least priority first, then greatest weight, host, port. All
// who ask so get one list. None: the answer is malformed.
[[nodiscard]] std::optional<std::vector<ServiceRecord>> service_records(std::span<const std::uint8_t> answer);

}  // namespace netsum::transport
