#include "daemon/data_sockets.h"

#include <algorithm>
#include <utility>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/bypass/dpdk_path.h"
#include "transport/bypass/xdp_path.h"
#include "transport/datagram/lossy.h"
#include "transport/datagram/udp.h"

namespace netsum::daemon {

bool is_of_this_host(const std::string& address) {
  try {
    return transport::is_of_this_host(transport::resolve(address));
  } catch (const Error&) {
    return false;  // no such host
  }
}

namespace {

std::vector<std::string> interfaces_of(const DataSocketsConfig& config, const Endpoint& listen) {
  if (!config.interfaces.empty()) return config.interfaces;
  if (transport::is_unspecified(listen)) {
    throw Error(ErrorCode::bad_argument,
                "--data-path xdp requires --interface, or --listen with one address in place of " + config.listen);
  }
  const auto interface = transport::interface_of(listen);
  if (!interface) throw Error(ErrorCode::bad_argument, "no interface has the address of " + config.listen);
  return {interface->name};
}

std::unique_ptr<transport::Transport> over_xdp(const DataSocketsConfig& config, std::unique_ptr<transport::Udp> socket,
                                               const transport::UdpOptions& options) {
  transport::XdpQueuesOptions wanted;
  wanted.interfaces = interfaces_of(config, options.bind);
  wanted.lanes = config.lanes;
  wanted.attachments = config.attachments;
  auto queues = transport::claim_xdp_queues(wanted);
  const std::uint16_t port = socket->local().port;
  if (config.log) {
    config.log(queues
                   ? "UDP port " + std::to_string(port) + ": AF_XDP on " + queues->description(port)
                   : "warning: UDP port " + std::to_string(port) +
                         " goes through the kernel: all queues of its interfaces are in use. For more queues: ethtool -L " +
                         wanted.interfaces.front() + " combined " + std::to_string(config.lanes));
  }
  if (!queues) return socket;
  return transport::over_xdp(std::move(queues), std::move(socket), options);
}

std::unique_ptr<transport::Transport> open_socket(const DataSocketsConfig& config, const Endpoint& listen,
                                                  std::uint32_t lane) {
  transport::UdpOptions udp;
  udp.bind = listen;
  udp.ipv6 = !transport::is_ipv4(listen);
  udp.ecn = true;
  udp.multicast_from_here = config.multicast;
  udp.coalesced = config.trains;
  auto socket = std::make_unique<transport::Udp>(udp);
  if (lane == 0 && !socket->buffer_warning().empty() && config.log) config.log("warning: " + socket->buffer_warning());
  if (config.data_path != DataPath::xdp) return socket;
  return over_xdp(config, std::move(socket), udp);
}

std::shared_ptr<transport::FrameHost> host_of(const DataSocketsConfig& config) {
  if (config.multicast) {
    throw Error(ErrorCode::bad_argument,
                "--multicast does not work with --data-path dpdk: remove --multicast, and each rank gets its own copy");
  }
  auto host = transport::dpdk_host(config.dpdk, config.lanes);
  if (config.log) config.log(config.dpdk.address + ": DPDK on " + host->description());
  return host;
}

}  // namespace

void check_threads(std::uint32_t threads) {
  if (threads == 0 || threads > 64) throw Error(ErrorCode::bad_argument, "threads must be between 1 and 64");
}

std::uint32_t lanes_of(const DaemonOptions& options) {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
  check_threads(options.threads);
  if (options.lanes > 64) throw bad("lanes must be between 0 and 64");
  if (options.lanes != 0 && options.lanes < options.threads) {
    throw bad(std::to_string(options.lanes) + " lanes are too few for " + std::to_string(options.threads) +
              " threads, which serve one or more each: give at least as many lanes, or fewer threads");
  }
  // A queue of a network card, or of a host of our own, is one thread's.
  const bool queues = options.data_path != DataPath::sockets;
  if (queues && options.lanes > options.threads)
    throw bad("data paths other than sockets have one lane for each thread: omit lanes");
  return options.lanes != 0 ? options.lanes : options.threads;
}

std::vector<std::unique_ptr<transport::Transport>> open_data_sockets(const DataSocketsConfig& config) {
  constexpr std::uint64_t loss_stream = 1'000'000;  // distinct from every rank's
  std::vector<std::unique_ptr<transport::Transport>> sockets;
  const Endpoint listen = transport::resolve(config.listen);
  if (config.data_path == DataPath::xdp && !transport::is_unspecified(listen) && !transport::is_ipv4(listen)) {
    throw Error(ErrorCode::bad_argument, "the data path xdp requires IPv4: listen at an IPv4 address, not " + config.listen);
  }
  if (listen.port != 0 && listen.port + config.lanes - 1 > 65535) {
    throw Error(ErrorCode::bad_argument, std::to_string(config.lanes) + " lanes need the UDP ports from " +
                                             std::to_string(listen.port) +
                                             " on, and the last port is 65535: give a lower one");
  }
  const auto host = config.data_path == DataPath::dpdk ? host_of(config) : nullptr;
  for (std::uint32_t i = 0; i < config.lanes; ++i) {
    Endpoint at = listen;
    at.port = static_cast<std::uint16_t>(listen.port == 0 ? 0 : listen.port + i);
    std::unique_ptr<transport::Transport> transport;
    try {
      transport = host ? host->open({.port = at.port, .ecn = true}) : open_socket(config, at, i);
    } catch (const Error& error) {
      if (i == 0 || error.code() != ErrorCode::refused) throw;
      throw Error(error.code(), std::string(error.what()) + " (" + std::to_string(config.lanes) +
                                    " lanes have the UDP ports from " + std::to_string(listen.port) +
                                    " on: ask for fewer --lanes, or for another port)");
    }
    if (config.loss > 0) {
      transport = std::make_unique<transport::Lossy>(std::move(transport), config.loss, config.loss_seed, loss_stream + i);
    }
    sockets.push_back(std::move(transport));
  }
  return sockets;
}

}  // namespace netsum::daemon
