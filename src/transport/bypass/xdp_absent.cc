#include "transport/bypass/xdp_absent.h"

#include "transport/bypass/xdp_path.h"

namespace netsum::transport {

Error xdp_absent(const std::string& what) {
  return {ErrorCode::refused, what +
                                  "this netsum was built without AF_XDP: it needs clang, libbpf and libxdp (Debian: clang, "
                                  "libbpf-dev, libxdp-dev) when it is configured"};
}

class XdpShare {};
XdpQueues::XdpQueues(XdpQueuesOptions options, std::vector<std::unique_ptr<XdpShare>> shares)
    : options_(std::move(options)), shares_(std::move(shares)) {}
bool XdpQueues::look_after(Time) {
  return false;
}
XdpQueues::~XdpQueues() = default;
std::string XdpQueues::description(std::uint16_t) const {
  return {};
}

std::unique_ptr<XdpQueues> claim_xdp_queues(const XdpQueuesOptions&) {
  throw xdp_absent("");
}

std::unique_ptr<Transport> over_xdp(std::unique_ptr<XdpQueues>, std::unique_ptr<Udp>, const UdpOptions&) {
  throw xdp_absent("");
}

}  // namespace netsum::transport
