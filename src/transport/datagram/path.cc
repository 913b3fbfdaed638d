#include "transport/datagram/path.h"

#include <array>

#include "transport/addresses/addresses.h"
#include "transport/datagram/udp.h"

namespace netsum::transport {

Path path_towards(const Endpoint& peer) {
  UdpOptions options;
  options.peer = peer;
  options.bind.address = is_ipv4(peer) ? std::array<std::uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}
                                       : std::array<std::uint8_t, 16>{};
  options.buffer_bytes = 4096;  // nothing is sent
  const Udp socket(options);
  return {socket.local(), socket.mtu()};
}

}  // namespace netsum::transport
