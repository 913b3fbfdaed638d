// Whether a network between two hosts translates addresses or ports (NAT, `docker -p`, Kubernetes' services).
#pragma once

#include "base/endpoint.h"

namespace netsum::transport {

// `control`: where an aggregator was reached; `lane`: where it says that it receives data, at its control port's number or
// at one of those that follow. Ports that were chosen freely (port 0) look like translated ones.
[[nodiscard]] inline bool seems_translated(const Endpoint& control, const Endpoint& lane) {
  constexpr int most_lanes = 64;
  return lane.address != control.address || lane.port < control.port || lane.port >= control.port + most_lanes;
}

}  // namespace netsum::transport
