// Datagrams over IPv4 past the kernel's network, by AF_XDP: netsum writes and reads whole frames. The kernel's socket stays
// beside it, holds the port, and carries what a frame cannot: to this host itself and by way of other interfaces, IPv6,
// multicast, fragments, and what arrives at a queue that is not the lane's. The kernel also says where frames go: its routes
// and neighbours are asked, now and then again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "transport/addresses/attachments.h"
#include "transport/datagram/transport.h"
#include "transport/datagram/udp.h"

namespace netsum::transport {

class XdpShare;

struct XdpQueuesOptions {
  std::vector<std::string> interfaces;
  std::uint32_t lanes = 1;                         // that share the interfaces' queues, this one included
  std::size_t buffer_bytes = socket_buffer_bytes;  // each way
  std::shared_ptr<Attachments> attachments{};      // told of the interfaces; null: nobody is
};

// Queues of interfaces that are one lane's, until this ends.
class XdpQueues {
 public:
  XdpQueues(XdpQueuesOptions options, std::vector<std::unique_ptr<XdpShare>> shares);
  ~XdpQueues();
  XdpQueues(const XdpQueues&) = delete;
  XdpQueues& operator=(const XdpQueues&) = delete;

  // For who is to know: which queues of which interfaces, whether the driver or the kernel copies, and how to steer the
  // datagrams to this port there, if that is needed.
  [[nodiscard]] std::string description(std::uint16_t port) const;
  // By interface; null: it was removed.
  [[nodiscard]] const std::vector<std::unique_ptr<XdpShare>>& shares() const { return shares_; }
  // Takes queues of interfaces that were made again, and gives up those that ended, without waiting. True: shares() have
  // changed, and none that is new is open.
  [[nodiscard]] bool look_after(Time at);

 private:
  const XdpQueuesOptions options_;
  std::vector<std::unique_ptr<XdpShare>> shares_;
};

// The first call of a process for an interface puts the program there, and the end of the last one's queues takes it away.
// Null: all queues are taken. Throws Error: bad_argument (no such interface, or no Ethernet), refused
// (not permitted, the interface is down or has an XDP program, no memory; this netsum or the kernel has no AF_XDP).
[[nodiscard]] std::unique_ptr<XdpQueues> claim_xdp_queues(const XdpQueuesOptions& options);

// One transport of the socket and these queues. `options` are those that the socket was made with. Throws Error: refused.
[[nodiscard]] std::unique_ptr<Transport> over_xdp(std::unique_ptr<XdpQueues> queues, std::unique_ptr<Udp> socket,
                                                  const UdpOptions& options);

}  // namespace netsum::transport
