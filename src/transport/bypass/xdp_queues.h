// A process's queues of interfaces, and the lanes that have them (xdp_path.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "transport/bypass/xdp_path.h"
#include "transport/bypass/xdp_socket.h"

namespace netsum::transport {

class XdpLink;

// Of one interface.
class XdpShare {
 public:
  XdpShare(std::shared_ptr<XdpLink> link, std::uint32_t owner, std::vector<std::uint32_t> queues, std::size_t bytes);
  ~XdpShare();
  XdpShare(const XdpShare&) = delete;
  XdpShare& operator=(const XdpShare&) = delete;

  // Datagrams to it come to the sockets from now on; one such endpoint only.
  void open(const Endpoint& local);
  [[nodiscard]] bool is_open() const { return port_ != 0; }
  // This host may have got other addresses by then.
  void learn_stations(Time at) const;
  [[nodiscard]] const XdpInterface& interface() const;
  [[nodiscard]] const std::vector<std::uint32_t>& queues() const { return queues_; }
  [[nodiscard]] const std::vector<std::unique_ptr<XdpSocket>>& sockets() const { return sockets_; }

 private:
  std::shared_ptr<XdpLink> link_;
  const std::uint32_t owner_;
  const std::vector<std::uint32_t> queues_;
  std::vector<std::unique_ptr<XdpSocket>> sockets_;  // by queue
  std::uint16_t port_ = 0;                           // 0: not open
};

}  // namespace netsum::transport
