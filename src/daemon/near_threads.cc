#include "daemon/near_threads.h"

#include "runtime/cpus.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/system/numa.h"

namespace netsum::daemon {
namespace {

std::string interface_towards_peers(const std::vector<std::string>& interfaces, const std::string& listen) {
  if (!interfaces.empty()) return interfaces.front();
  if (listen.empty()) return {};
  const auto interface = transport::interface_of(transport::resolve(listen));  // none has the address 0.0.0.0
  return interface ? interface->name : "";
}

}  // namespace

runtime::ThreadOptions near_threads(bool pinned, const std::vector<std::string>& interfaces, const std::string& listen) {
  runtime::ThreadOptions threads;
  if (!pinned) return threads;
  threads.node = transport::node_of(interface_towards_peers(interfaces, listen));
  threads.cpus = transport::near_first(runtime::allowed_cpus(), threads.node);
  return threads;
}

}  // namespace netsum::daemon
