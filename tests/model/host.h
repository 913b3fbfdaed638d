// Where the models' nodes are, and what keeps what they send.
#pragma once

#include <cstdint>

#include "base/endpoint.h"
#include "support/recording_sink.h"

namespace netsum::model {

using testing::RecordingSink;

[[nodiscard]] inline Endpoint host(std::uint32_t number) {
  Endpoint endpoint;
  endpoint.address[15] = static_cast<std::uint8_t>(number);
  endpoint.port = 1;
  return endpoint;
}

}  // namespace netsum::model
