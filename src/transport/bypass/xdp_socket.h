// An AF_XDP socket: the frames that one queue of an interface receives, and that a program there sends its way
// (xdp_steering.h), in memory shared with the kernel, and frames to be sent from there. Where the driver can, it receives
// into and sends from this memory itself (zero copy); elsewhere the kernel copies, and makes a packet of each frame to send.
#pragma once

#include <linux/bpf.h>
#include <sys/uio.h>
#include <xdp/xsk.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "netsum/error.h"
#include "transport/bypass/xdp_frames.h"
#include "transport/system/socket.h"

namespace netsum::transport {

// `what` failed with that errno.
[[nodiscard]] Error xdp_refused(const std::string& what, int error);

// Tries again for so long as that says EBUSY or EEXIST: what a process had that has just ended goes a little later. Returns
// what the last try did: 0 or errno.
[[nodiscard]] int despite_predecessor(std::chrono::milliseconds patience, const std::function<int()>& attempt);

// An interface, as far as AF_XDP goes.
struct XdpInterface {
  std::string name;
  std::uint32_t index = 0;
  std::uint32_t queues = 1;  // that receive
  std::size_t mtu = 0;
  std::size_t longest = 0;                   // IP packet that a socket takes and sends; may be less than the MTU
  std::size_t frame_bytes = 0;               // of shared memory: the least that hold that
  std::chrono::milliseconds patience{1000};  // with what an ended process had there; 0: where others must not wait
};
// Throws Error: bad_argument (no such interface, or no Ethernet), refused (it is down).
[[nodiscard]] XdpInterface xdp_interface(const std::string& name);
// With its Ethernet header and VLAN tags.
[[nodiscard]] std::size_t longest_frame(const XdpInterface& interface);

// Belongs to one thread.
class XdpSocket {
 public:
  // In front of a received frame so many bytes may be written.
  static constexpr std::size_t headroom = XDP_PACKET_HEADROOM;

  // `bytes` of shared memory each way, or a little more or less. Throws Error: refused (not permitted, the queue has such a
  // socket, no memory, a kernel without AF_XDP).
  XdpSocket(const XdpInterface& interface, std::uint32_t queue, std::size_t bytes);
  ~XdpSocket();
  XdpSocket(const XdpSocket&) = delete;
  XdpSocket& operator=(const XdpSocket&) = delete;

  [[nodiscard]] int descriptor() const;  // readable: there is something to receive
  [[nodiscard]] bool zero_copy() const { return zero_copy_; }
  [[nodiscard]] std::size_t frame_bytes() const { return frame_bytes_; }

  // The frames that have arrived, until XdpFrames::most_taken; valid until the next call.
  [[nodiscard]] std::span<const iovec> receive();
  [[nodiscard]] std::size_t waiting() const { return frames_->waiting(); }
  [[nodiscard]] std::size_t capacity() const { return frames_->places(); }
  [[nodiscard]] std::size_t outgoing() const { return frames_->outgoing(); }
  // Frames dropped before they were received, since this process was slow.
  [[nodiscard]] std::uint64_t overrun() const;

  // A place for a frame, to be filled before send(); empty: there is none, even after those before it were sent, or it is
  // too long.
  [[nodiscard]] std::span<std::byte> add(std::size_t bytes);
  [[nodiscard]] FramePlaces& places() { return *frames_; }  // the same, without sending
  // Has the frames added leave, without waiting. One system call for 32 frames where the kernel copies.
  void send();

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };
  struct Close {
    void operator()(xsk_umem* memory) const { xsk_umem__delete(memory); }
    void operator()(xsk_socket* socket) const { xsk_socket__delete(socket); }
  };

  [[nodiscard]] int open(const std::string& interface, std::uint32_t queue);

  const std::size_t frame_bytes_;
  bool zero_copy_ = false;
  XdpRings rings_;
  // From the last to the first, as they must end.
  std::unique_ptr<std::byte, Unmap> memory_;
  std::unique_ptr<xsk_umem, Close> registered_;
  // Two of the same memory and queue: the kernel wakes who waits for the one that sends with each frame that has left, and
  // would so wake who waits to receive.
  std::unique_ptr<xsk_socket, Close> sending_, receiving_;
  std::optional<XdpFrames> frames_;
};

}  // namespace netsum::transport
