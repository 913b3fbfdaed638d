#include "netsum/error.h"
#include "transport/xdp_port.h"

namespace netsum::transport {

std::unique_ptr<Port> open_xdp_port(const std::string& interface, const PortOptions&) {
  throw Error(ErrorCode::refused,
              "port xdp:" + interface +
                  ": this netsum was built without AF_XDP: it needs clang, libbpf and libxdp (Debian: clang, "
                  "libbpf-dev, libxdp-dev) when it is configured");
}

}  // namespace netsum::transport
