// The headers of frames to a job's neighbours, which the program in the kernel copies (maps.h).
#pragma once

#include "base/endpoint.h"
#include "dataplane/xdp/maps.h"
#include "transport/addresses/next_hop.h"

namespace netsum::dataplane::xdp {

// Headers of packets of `elements` elements from `from` to `to`, by that hop. No UDP checksum, which IPv4 allows.
[[nodiscard]] XdpWay way_to(const Endpoint& to, const Endpoint& from, const transport::NextHop& hop, std::uint32_t elements);

// To a group of IP multicast, from that interface.
[[nodiscard]] XdpWay way_to_group(const Endpoint& group, const Endpoint& from, const transport::NextHop& hop,
                                  std::uint32_t elements);

}  // namespace netsum::dataplane::xdp
