// The data planes outside of this process, by their names: each is a service::ChipPlane for every lane.
#pragma once

#include <memory>
#include <vector>

#include "base/endpoint.h"
#include "netsum/aggregator.h"
#include "service/chip_plane.h"
#include "transport/addresses/attachments.h"

namespace netsum::daemon {

// Throws Error: bad_argument, for settings that the data plane does not have.
void check_data_plane(const AggregatorOptions& options);

// Not for DataPlane::sockets. `lanes`: where their sockets are, which receive everything else. `attachments` are told of the
// interfaces. Throws Error: bad_argument, refused.
[[nodiscard]] service::ChipPlanes open_data_plane(const AggregatorOptions& options, const std::vector<Endpoint>& lanes,
                                                  std::shared_ptr<transport::Attachments> attachments);

}  // namespace netsum::daemon
