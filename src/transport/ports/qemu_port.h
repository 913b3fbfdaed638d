// A virtual machine's network card as a port: with QEMU's -netdev dgram, each datagram of a Unix or UDP socket is one
// complete frame without FCS.
//
//   qemu-system-x86_64 ... -netdev dgram,id=n,local.type=unix,local.path=/run/vm0,remote.type=unix,remote.path=/run/wire0
//                          -device virtio-net-pci,netdev=n     is the guest of the port qemu:/run/wire0,/run/vm0
//
// The datagram has no room for a VirtioNetHeader. Received frames get a zero header. For sent frames, the port computes
// missing checksums and drops trains, which it cannot cut: hosts at other ports must not send trains
// (ethtool -K IFNAME tso off gso off).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/copied.h"
#include "transport/ports/frame_io.h"
#include "transport/ports/frame_queue.h"
#include "transport/ports/port.h"
#include "transport/system/socket.h"

namespace netsum::transport {

class QemuPort final : public Port {
 public:
  // Paths of sockets, or HOST:PORT. `remote` need not be there yet, and may go and come back. Throws Error: bad_argument,
  // refused (`local` is in use).
  QemuPort(const std::string& local, const std::string& remote, const PortOptions& options);
  ~QemuPort() override;

  void receive(std::vector<RxView>& into, const Endpoint& source) override;
  void send(std::span<iovec> frames) override;
  int descriptor() const override { return receive_.number(); }
  bool waiting() const override { return !queue_.empty(); }
  int room_descriptor() const override { return send_.number(); }
  PortCounters counters() const override { return counters_; }
  std::uint64_t queued_bytes() const override { return receive_memory(receive_.number()); }
  std::string warning() const override { return warning_; }

 private:
  void transmit(std::span<iovec> frames);
  [[nodiscard]] std::size_t offer(std::span<iovec> frames);

  const std::string local_, remote_;
  // The sending socket is connected, so that poll() reports when the guest has room. The receiving one is not, so that it
  // receives from a restarted guest's new socket.
  Descriptor receive_, send_;
  bool (*mark_)(std::span<std::byte> frame);
  std::size_t receive_buffer_ = 0;
  std::string warning_;
  FrameReceiver receiver_;
  FrameSender sender_;
  FrameQueue queue_;
  CopiedMemory completed_;  // a frame whose checksum was computed
  PortCounters counters_;
};

}  // namespace netsum::transport
