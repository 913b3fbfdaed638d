#include "daemon/data_planes.h"

#include <algorithm>
#include <utility>

#include "daemon/near_threads.h"
#include "dataplane/bmv2/bmv2.h"
#include "dataplane/xdp/xdp.h"
#include "netsum/error.h"
#include "runtime/thread.h"
#include "transport/addresses/addresses.h"

namespace netsum::daemon {

void check_data_plane(const AggregatorOptions& options) {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
  const bool bmv2 = options.data_plane == DataPlane::bmv2;
  if (options.data_plane != DataPlane::xdp && !options.interfaces.empty() && options.data_path != DataPath::xdp) {
    throw bad("--interface requires --data-plane xdp or --data-path xdp: sockets use all interfaces");
  }
  if (!bmv2 && !options.target.empty()) throw bad("--target requires --data-plane bmv2");
  if (options.data_plane == DataPlane::sockets) return;
  if (bmv2 && options.data_path == DataPath::dpdk)
    throw bad("--data-plane bmv2 does not work with --data-path dpdk: the P4 switch must be reached through the kernel");
  if (!bmv2 && options.data_path != DataPath::sockets) {
    throw bad("--data-plane xdp requires --data-path sockets");
  }
  const std::string name = bmv2 ? "bmv2" : "XDP";
  if (options.lanes > options.threads) throw bad("the " + name + " data plane has one lane for each thread: omit --lanes");
  if (!options.chip) throw bad("the " + name + " data plane supports the chip profile only: use --profile chip");
  if (!bmv2 && options.interfaces.empty()) {
    throw bad("--data-plane xdp requires --interface: name the interfaces towards ranks and other switches");
  }
  if (bmv2 && options.target.empty()) {
    throw bad("--data-plane bmv2 requires --target HOST:PORT, the address of simple_switch's Thrift server");
  }
  if (options.loss > 0) {
    throw bad("--loss requires the data plane sockets: packets of the " + name + " data plane reach no socket");
  }
  const Endpoint listen = transport::resolve(options.listen);
  if (!transport::is_ipv4(listen)) {
    throw bad("the " + name + " data plane requires IPv4: listen at an IPv4 address, not " + options.listen);
  }
  if (bmv2 && transport::is_unspecified(listen)) {
    throw bad("the bmv2 data plane requires the address that ranks send to: listen at that address, not at " +
              options.listen);
  }
}

service::ChipPlanes open_data_plane(const AggregatorOptions& options, const std::vector<Endpoint>& lanes,
                                    std::shared_ptr<transport::Attachments> attachments) {
  if (options.data_plane == DataPlane::bmv2) return dataplane::bmv2::open({options.target, lanes});
  dataplane::xdp::Config config{options.interfaces, {}, std::move(attachments)};
  const runtime::ThreadOptions threads = near_threads(true, options.interfaces, options.listen);
  for (const Endpoint& local : lanes) {
    config.lanes.push_back({local, std::max(threads.cpu(config.lanes.size()), 0)});
  }
  const runtime::SignalsBlocked blocked;  // it has a thread
  return dataplane::xdp::open(config);
}

}  // namespace netsum::daemon
