#include "daemon/data_sockets.h"

#include <utility>

#include "netsum/error.h"
#include "transport/addresses.h"
#include "transport/interfaces.h"
#include "transport/lossy.h"
#include "transport/udp.h"

namespace netsum::daemon {

bool is_of_this_host(const std::string& address) {
  try {
    return transport::is_of_this_host(transport::resolve(address));
  } catch (const Error&) {
    return false;  // no such host
  }
}

std::vector<std::unique_ptr<transport::Transport>> open_data_sockets(const DataSocketsConfig& config) {
  constexpr std::uint64_t loss_stream = 1'000'000;  // distinct from every rank's
  std::vector<std::unique_ptr<transport::Transport>> sockets;
  const Endpoint listen = transport::resolve(config.listen);
  for (std::uint32_t i = 0; i < config.threads; ++i) {
    transport::UdpOptions udp;
    udp.bind = listen;
    udp.bind.port = static_cast<std::uint16_t>(listen.port == 0 ? 0 : listen.port + i);
    udp.ipv6 = !transport::is_ipv4(listen);
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

}  // namespace netsum::daemon
