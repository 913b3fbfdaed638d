#include "transport/ports/port.h"

#include "netsum/error.h"
#include "transport/ports/packet_port.h"
#include "transport/ports/qemu_port.h"
#include "transport/ports/xdp_port.h"

namespace netsum::transport {

PortCounters& PortCounters::operator+=(const PortCounters& other) {
  frames_received += other.frames_received;
  bytes_received += other.bytes_received;
  frames_sent += other.frames_sent;
  bytes_sent += other.bytes_sent;
  dropped_overrun += other.dropped_overrun;
  dropped_unreadable += other.dropped_unreadable;
  dropped_full += other.dropped_full;
  dropped_refused += other.dropped_refused;
  dropped_train += other.dropped_train;
  dropped_malformed += other.dropped_malformed;
  marked += other.marked;
  return *this;
}

std::unique_ptr<Port> open_port(const std::string& text, const PortOptions& options) {
  const std::size_t colon = text.find(':');
  const std::string kind = colon == std::string::npos ? "eth" : text.substr(0, colon);
  const std::string rest = colon == std::string::npos ? text : text.substr(colon + 1);
  if (kind == "eth" && !rest.empty()) return std::make_unique<PacketPort>(rest, options);
  if (kind == "xdp" && !rest.empty()) return open_xdp_port(rest, options);
  const std::size_t comma = rest.find(',');
  if (kind == "qemu" && options.own_source) {
    throw Error(ErrorCode::bad_argument,
                "port '" + text + "' has no address of its own: one arm needs an Ethernet interface");
  }
  if (kind == "qemu" && comma != std::string::npos) {
    return std::make_unique<QemuPort>(rest.substr(0, comma), rest.substr(comma + 1), options);
  }
  throw Error(ErrorCode::bad_argument, "'" + text +
                                           "' is not a port: use IFNAME (or eth:IFNAME), xdp:IFNAME, "
                                           "qemu:LOCAL_PATH,REMOTE_PATH or qemu:LOCAL_HOST:PORT,REMOTE_HOST:PORT");
}

}  // namespace netsum::transport
