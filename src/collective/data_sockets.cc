#include "collective/data_sockets.h"

#include <array>
#include <utility>

#include "netsum/error.h"
#include "transport/addresses.h"
#include "transport/interfaces.h"
#include "transport/lossy.h"
#include "transport/udp.h"

namespace netsum::collective {

bool is_of_this_host(const std::string& address) {
  try {
    return transport::is_of_this_host(transport::resolve(address));
  } catch (const Error&) {
    return false;  // nobody has it
  }
}

Path path_towards(const Endpoint& peer) {
  transport::UdpOptions options;
  options.peer = peer;
  options.bind.address = transport::is_ipv4(peer) ? std::array<std::uint8_t, 16>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}
                                                  : std::array<std::uint8_t, 16>{};
  options.buffer_bytes = 4096;  // nothing is sent
  const transport::Udp socket(options);
  return {socket.local(), socket.mtu()};
}

std::vector<std::unique_ptr<transport::Transport>> open_data_sockets(const DataSocketsConfig& config) {
  constexpr std::uint64_t loss_stream = 1'000'000;  // apart from every rank's
  std::vector<std::unique_ptr<transport::Transport>> sockets;
  const Endpoint listen = transport::resolve(config.listen);
  for (std::uint32_t i = 0; i < config.threads; ++i) {
    transport::UdpOptions udp;
    udp.bind = listen;
    udp.bind.port = static_cast<std::uint16_t>(listen.port == 0 ? 0 : listen.port + i);
    udp.ipv6 = !transport::is_ipv4(listen);
    udp.buffer_bytes = socket_buffer_bytes;
    udp.ecn = true;
    udp.multicast_from_here = config.multicast;
    auto socket = std::make_unique<transport::Udp>(udp);
    if (i == 0 && !socket->buffer_warning().empty() && config.log) config.log("warning: " + socket->buffer_warning());
    std::unique_ptr<transport::Transport> transport = std::move(socket);
    if (config.loss > 0) {
      transport = std::make_unique<transport::Lossy>(std::move(transport), config.loss, config.loss_seed, loss_stream + i);
    }
    sockets.push_back(std::move(transport));
  }
  return sockets;
}

}  // namespace netsum::collective
