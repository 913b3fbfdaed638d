#include "transport/bypass/xdp_absent.h"
#include "transport/ports/xdp_port.h"

namespace netsum::transport {

std::unique_ptr<Port> open_xdp_port(const std::string& interface, const PortOptions&) {
  throw xdp_absent("port xdp:" + interface + ": ");
}

}  // namespace netsum::transport
