#include "collective/lane.h"

#include <algorithm>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/datagram/path.h"

namespace netsum::collective {

std::uint32_t LanePath::mtu_towards(const Endpoint& to) {
  const std::uint32_t own = transport::path_towards(to).mtu;  // to this host: the loopback device's
  if (!transport::is_of_this_host(to)) return own;
  const auto interface = transport::interface_of(to);
  return interface ? std::min(own, interface->mtu) : own;
}

HostPath::HostPath(const std::shared_ptr<transport::FrameHost>& of_rank, const Endpoint& aggregator,
                   const transport::HostLaneOptions& options)
    : host(of_rank) {
  if (!transport::is_ipv4(aggregator)) {
    throw Error(ErrorCode::bad_argument,
                "the data path dpdk requires IPv4, and the aggregator's address is " + transport::to_string(aggregator));
  }
  lane = host->open(options);
}

}  // namespace netsum::collective
