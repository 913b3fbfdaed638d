#include "netsum/error.h"
#include "transport/xdp_path.h"
#include "transport/xdp_port.h"

namespace netsum::transport {
namespace {

Error absent(const std::string& what) {
  return {ErrorCode::refused, what +
                                  "this netsum was built without AF_XDP: it needs clang, libbpf and libxdp (Debian: clang, "
                                  "libbpf-dev, libxdp-dev) when it is configured"};
}

}  // namespace

std::unique_ptr<Port> open_xdp_port(const std::string& interface, const PortOptions&) {
  throw absent("port xdp:" + interface + ": ");
}

class XdpShare {};
XdpQueues::XdpQueues(std::vector<std::unique_ptr<XdpShare>> shares) : shares_(std::move(shares)) {}
XdpQueues::~XdpQueues() = default;
std::string XdpQueues::description(std::uint16_t) const {
  return {};
}

std::unique_ptr<XdpQueues> claim_xdp_queues(const XdpQueuesOptions&) {
  throw absent("");
}

std::unique_ptr<Transport> over_xdp(std::unique_ptr<XdpQueues>, std::unique_ptr<Udp>, const UdpOptions&) {
  throw absent("");
}

}  // namespace netsum::transport
