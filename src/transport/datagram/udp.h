// Kernel UDP in batches: recvmmsg with UDP_GRO, sendmmsg with UDP_SEGMENT, where the kernel has them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/endpoint.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/own_addresses.h"
#include "transport/datagram/transport.h"

namespace netsum::transport {

inline constexpr std::size_t socket_buffer_bytes = 8 << 20;

struct UdpOptions {
  // An unspecified address of either family, or a local one; port 0: any. A socket bound to an unspecified address, and
  // connected to no peer, answers from the address that the peer has sent to.
  Endpoint bind{};
  bool ipv6 = false;                               // which family an unspecified `bind` means; IPv6 takes IPv4 datagrams too
  std::optional<Endpoint> peer{};                  // connects the socket: the kernel then drops datagrams from others
  std::size_t buffer_bytes = socket_buffer_bytes;  // asked of the kernel, each way
  bool segmentation = true;                        // false: as on a kernel without UDP_SEGMENT and UDP_GRO
  bool coalesced = true;                           // false: without UDP_GRO
  // Sends every datagram as ECT(0), so that queues on the way mark rather than drop it, and reports marks on received
  // datagrams (RxView::congested). Off by default: marks without a reaction are worse than drops.
  bool ecn = false;
  // Multicast leaves at the interface of `bind` if that is an IPv4 address, else by the route to the group. Its TTL is 1, so
  // it stays in that network.
  bool multicast_from_here = false;
};

class Udp final : public Transport {
 public:
  // Throws Error: refused (address in use, no such family, no ECN), bad_argument (families differ), unreachable (no route).
  explicit Udp(const UdpOptions& options);
  ~Udp() override;

  std::span<const RxView> receive() override;
  Sink& sink() override;
  int descriptor() const override;
  Endpoint local() const override;
  Counters counters() const override;
  std::uint64_t dropped_kernel() const override;
  std::uint64_t queued_bytes() const override;
  std::uint64_t receive_buffer_bytes() const override;
  void send_from(const Endpoint& to, const Endpoint& own) override;
  void allow_fragments(bool allowed) override;
  bool set_filter(std::span<const sock_filter> program) override;

  // Null if the socket is bound to one address. For whoever receives and sends beside it at its port.
  [[nodiscard]] OwnAddresses* own_addresses() const;

  // As PortSet's: another sink, for another thread. counters() are with what those threads sent, if none sends now.
  [[nodiscard]] Sink& other_sink();

  [[nodiscard]] std::uint32_t mtu() const;           // of the path to the peer, IP headers included; 1500 without a peer
  [[nodiscard]] std::string buffer_warning() const;  // empty, or which buffer is too small, and its sysctl

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::transport
