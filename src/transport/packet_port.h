// An Ethernet interface as a port: a packet socket (packet(7)) that sees all arriving frames, whatever their destination,
// and no departing ones.
//
// The interface's own host sees them too: give it no address (ip link set IFNAME addrgenmode none; no ip addr add).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transport/frame_io.h"
#include "transport/port.h"
#include "transport/socket.h"

namespace netsum::transport {

class PacketPort final : public Port {
 public:
  // Throws Error: bad_argument (no such interface, or no Ethernet), refused (no CAP_NET_RAW, the interface is down).
  PacketPort(const std::string& interface, const PortOptions& options);

  void receive(std::vector<RxView>& into, const Endpoint& source) override;
  void send(std::span<iovec> frames) override;
  int descriptor() const override { return socket_.number(); }
  PortCounters counters() const override;
  std::uint64_t queued_bytes() const override { return receive_memory(socket_.number()); }
  std::string warning() const override { return warning_; }
  // To the kernel, an interface re-created under the same name is a new one; the socket receives nothing until bound to it.
  std::string look_after() override;

 private:
  void attach(int index);

  std::string interface_;
  int index_ = 0;  // of the interface that the socket is bound to; 0: interface gone
  Descriptor socket_;
  std::string warning_;
  FrameReceiver receiver_;
  FrameSender sender_;
  mutable PortCounters counters_;  // the kernel's drop count is added when counters() is called
};

}  // namespace netsum::transport
