#include "daemon/data_planes.h"

#include <algorithm>

#include "dataplane/xdp/xdp.h"
#include "netsum/error.h"
#include "runtime/thread.h"
#include "transport/addresses.h"

namespace netsum::daemon {

void check_data_plane(const AggregatorOptions& options) {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
  if (options.data_plane == DataPlane::sockets) {
    if (!options.interfaces.empty() && options.data_path == DataPath::sockets) {
      throw bad("interfaces are for the data plane or data path xdp: sockets use all of them");
    }
    return;
  }
  if (options.data_path != DataPath::sockets) {
    throw bad("an interface has one XDP program: either the data plane is xdp, or the data path");
  }
  if (!options.chip) throw bad("the XDP data plane has the chip profile alone, not the software profile");
  if (options.interfaces.empty()) {
    throw bad("the XDP data plane needs to know its interfaces (--interface): those towards ranks and other switches");
  }
  if (options.loss > 0) throw bad("no losses can be injected into the XDP data plane: its packets come to no socket");
  if (!transport::is_ipv4(transport::resolve(options.listen))) {
    throw bad("the XDP data plane is of IPv4: listen at an IPv4 address, not " + options.listen);
  }
}

service::ChipPlanes open_data_plane(const AggregatorOptions& options, const std::vector<Endpoint>& lanes) {
  dataplane::xdp::Config config{options.interfaces, {}};
  for (const Endpoint& local : lanes) {
    const int cpu = runtime::allowed_cpu(static_cast<int>(config.lanes.size()));
    config.lanes.push_back({local, std::max(cpu, 0)});
  }
  return dataplane::xdp::open(config);
}

}  // namespace netsum::daemon
