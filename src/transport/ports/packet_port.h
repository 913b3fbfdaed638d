// An Ethernet interface as a port: a packet socket (packet(7)) that sees all arriving frames, whatever their destination,
// and no departing ones.
//
// The interface's own host sees them too: give it no address (ip link set IFNAME addrgenmode none; no ip addr add).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/ports/frame_io.h"
#include "transport/ports/packet_ring.h"
#include "transport/ports/port.h"
#include "transport/system/socket.h"

namespace netsum::transport {

// Sends through an interface, by a socket of its own that receives nothing. Not through a ring: on virtual interfaces the
// kernel says that a frame has left while the receiver still reads it.
class PacketSender final : public PortSender {
 public:
  // `index`: of the interface now, 0 while it is gone. Throws Error: refused.
  PacketSender(const std::string& interface, const std::atomic<int>& index, const PortOptions& options);

  void send(std::span<iovec> frames) override;
  PortCounters counters() const override { return counters_; }
  const std::string& warning() const { return warning_; }

 private:
  void follow();

  const std::string interface_;
  const std::atomic<int>& index_;
  int bound_ = 0;  // the interface that the socket is bound to
  Descriptor socket_;
  bool (*mark_)(std::span<std::byte> frame);
  const bool own_source_;
  std::array<std::byte, 6> address_{};  // the interface's
  std::size_t buffer_bytes_ = 0;
  std::string warning_;
  FrameSender sender_;
  PortCounters counters_;
};

class PacketPort final : public Port {
 public:
  // Throws Error: bad_argument (no such interface, or no Ethernet), refused (no CAP_NET_RAW, the interface is down, no
  // memory).
  PacketPort(const std::string& interface, const PortOptions& options);

  void receive(std::vector<RxView>& into, const Endpoint& source) override;
  void send(std::span<iovec> frames) override { sender_->send(frames); }
  std::unique_ptr<PortSender> another_sender() override;
  int descriptor() const override { return socket_.number(); }
  PortCounters counters() const override;
  std::uint64_t queued_bytes() const override { return ring_->waiting() * ring_->slot_bytes(); }
  std::string warning() const override;
  // To the kernel, an interface re-created under the same name is a new one; the socket receives nothing until bound to it.
  std::string look_after() override;
  bool attached() const override { return index_ != 0; }

 private:
  void attach(int index);

  const std::string interface_;
  const PortOptions options_;
  std::atomic<int> index_ = 0;  // of the interface that the socket is bound to; 0: interface gone
  Descriptor socket_;
  std::string warning_;
  std::optional<PacketRing> ring_;
  FrameReceiver long_frames_;
  std::optional<PacketSender> sender_;
  mutable PortCounters counters_;  // the kernel's drop count is added when counters() is called
};

}  // namespace netsum::transport
