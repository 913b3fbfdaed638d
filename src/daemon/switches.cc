#include "daemon/switches.h"

#include "daemon/data_sockets.h"
#include "daemon/proved_endpoints.h"
#include "transport/addresses.h"
#include "transport/path.h"

namespace netsum::daemon {

void complete_lanes(std::vector<Endpoint>& lanes, const std::string& numeric_address) {
  const Endpoint reached = transport::resolve(numeric_address);  // no name look-up
  for (Endpoint& lane : lanes) {
    if (!transport::is_unspecified(lane)) continue;
    lane.address = reached.address;
    lane.scope = reached.scope;
  }
  check_lanes(lanes, reached);
}

std::vector<Endpoint> own_endpoints(const std::vector<Endpoint>& lanes, const Endpoint& a_switch) {
  std::vector<Endpoint> own = lanes;
  for (Endpoint& lane : own) {
    if (!transport::is_unspecified(lane)) continue;
    const std::uint16_t port = lane.port;
    lane = transport::path_towards(a_switch).local;
    lane.port = port;
  }
  return own;
}

}  // namespace netsum::daemon
