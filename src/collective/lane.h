// One of a rank's lanes, from the first contact with its aggregator until a worker has it: what carries its packets, by the
// rank's data path. All have a transport, for probes first and then the worker's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "base/endpoint.h"
#include "transport/bypass/frame_host.h"
#include "transport/bypass/xdp_path.h"
#include "transport/datagram/multicast.h"
#include "transport/datagram/udp.h"
#include "transport/rdma/verbs_ring.h"

namespace netsum::collective {

// What holds unless a path says otherwise.
struct LanePath {
  static constexpr bool sends_probes = true;
  [[nodiscard]] static std::string buffer_warning() { return {}; }
  // As the kernel's route says; to an address of this host, as its interface's link: ranks elsewhere come over that.
  [[nodiscard]] static std::uint32_t mtu_towards(const Endpoint& to);
};

struct SocketPath : LanePath {
  explicit SocketPath(const transport::UdpOptions& of_socket)
      : options(of_socket), socket(std::make_unique<transport::Udp>(of_socket)) {}
  [[nodiscard]] transport::Transport& transport() const { return *socket; }
  [[nodiscard]] std::unique_ptr<transport::Transport> take() { return std::move(socket); }
  [[nodiscard]] std::string buffer_warning() const { return socket->buffer_warning(); }

  transport::UdpOptions options;
  std::unique_ptr<transport::Udp> socket;
};

// DataPath::xdp: an interface's queues carry the socket's datagrams from take() on.
struct XdpPath : SocketPath {
  XdpPath(SocketPath below, std::unique_ptr<transport::XdpQueues> of_lane)
      : SocketPath(std::move(below)), queues(std::move(of_lane)) {}
  [[nodiscard]] std::unique_ptr<transport::Transport> take() {
    return transport::over_xdp(std::move(queues), std::move(socket), options);
  }

  std::unique_ptr<transport::XdpQueues> queues;
};

// DataPath::dpdk.
struct HostPath : LanePath {
  // Throws Error: bad_argument, the aggregator's address is not IPv4; and as FrameHost::open().
  HostPath(const std::shared_ptr<transport::FrameHost>& of_rank, const Endpoint& aggregator,
           const transport::HostLaneOptions& options);
  [[nodiscard]] transport::Transport& transport() const { return *lane; }
  [[nodiscard]] std::unique_ptr<transport::Transport> take() { return std::move(lane); }
  [[nodiscard]] std::uint32_t mtu_towards(const Endpoint&) const { return host->mtu(); }

  std::shared_ptr<transport::FrameHost> host;
  std::unique_ptr<transport::Transport> lane;
};

// RDMA hardware, which sends what a ring needs and no datagrams.
struct VerbsPath : LanePath {
  static constexpr bool sends_probes = false;
  explicit VerbsPath(std::unique_ptr<transport::VerbsRing> of_lane) : ring(std::move(of_lane)) {}
  [[nodiscard]] transport::Transport& transport() const { return *ring; }
  [[nodiscard]] std::unique_ptr<transport::Transport> take() { return std::move(ring); }

  std::unique_ptr<transport::VerbsRing> ring;
};

struct Lane {
  Endpoint aggregator;
  std::variant<SocketPath, XdpPath, HostPath, VerbsPath> path;
  std::unique_ptr<transport::GroupSocket> group{};  // results arrive here too, if the lane is in one
  std::uint64_t cookie = 0, switch_cookie = 0;      // from the probe answers of the aggregator's lane and the switch's

  [[nodiscard]] bool sends_probes() const {
    return std::visit([](const auto& each) { return each.sends_probes; }, path);
  }
  [[nodiscard]] std::string buffer_warning() const {
    return std::visit([](const auto& each) { return each.buffer_warning(); }, path);
  }
  // The longest packets, IP headers included, that this rank's end, or all ranks' on its link, can send there.
  [[nodiscard]] std::uint32_t mtu_towards(const Endpoint& to) const {
    return std::visit([&](const auto& each) { return each.mtu_towards(to); }, path);
  }
  [[nodiscard]] transport::Transport& transport() const {
    return std::visit([](const auto& each) -> transport::Transport& { return each.transport(); }, path);
  }
  [[nodiscard]] Endpoint local() const { return transport().local(); }
  // For the worker, with what arrives at the group; once.
  [[nodiscard]] std::unique_ptr<transport::Transport> take_transport() {
    return transport::with_group(std::visit([](auto& each) { return each.take(); }, path), std::move(group));
  }
};

}  // namespace netsum::collective
