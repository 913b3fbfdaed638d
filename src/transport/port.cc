#include "transport/port.h"

#include "netsum/error.h"
#include "transport/packet_port.h"
#include "transport/qemu_port.h"

namespace netsum::transport {

std::unique_ptr<Port> open_port(const std::string& text, const PortOptions& options) {
  const std::size_t colon = text.find(':');
  const std::string kind = colon == std::string::npos ? "eth" : text.substr(0, colon);
  const std::string rest = colon == std::string::npos ? text : text.substr(colon + 1);
  if (kind == "eth" && !rest.empty()) return std::make_unique<PacketPort>(rest, options);
  const std::size_t comma = rest.find(',');
  if (kind == "qemu" && comma != std::string::npos) {
    return std::make_unique<QemuPort>(rest.substr(0, comma), rest.substr(comma + 1), options);
  }
  throw Error(ErrorCode::bad_argument, "'" + text +
                                           "' is no port: those are IFNAME (or eth:IFNAME), qemu:LOCAL_PATH,REMOTE_PATH and "
                                           "qemu:LOCAL_HOST:PORT,REMOTE_HOST:PORT");
}

}  // namespace netsum::transport
