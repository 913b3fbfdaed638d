// Ethernet ports, of which a bump in the wire has two or more. A port set (port_set.h) makes a transport of them.
//
// Every frame that a port hands out or takes begins with a virtio_net_header (base/virtio_net.h), followed by the Ethernet
// header; there is no FCS. VLAN tags are in the frame, wherever the kernel keeps them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/packet_io.h"
#include "base/virtio_net.h"

namespace netsum::transport {

// The longest IPv4 packet after the Ethernet header and two VLAN tags: an uncut train may be this long.
inline constexpr std::size_t max_frame_bytes = 65535 + 14 + 8;

struct PortOptions {
  std::size_t buffer_bytes = 8 << 20;  // asked of the kernel, each way
  std::size_t queue_bytes = 2 << 20;   // QEMU: frames queued for the guest, which takes ten at a time; more are dropped
  // Marks a frame, given from its Ethernet header on, that meets a long queue of the port (long_from); false: its sender
  // does not understand marks. Null: nothing is marked.
  bool (*mark)(std::span<std::byte> frame) = nullptr;
  // Ethernet: frames leave with the interface's own address as their source, so that a switch that redirected them here does
  // not learn that their senders have moved.
  bool own_source = false;
};

// From where a queue that holds `most` at most is long. The rest is for what comes before senders have slowed down.
[[nodiscard]] constexpr std::size_t long_from(std::size_t most) {
  return most / 8;
}

// Lines of the log about a port's interface that was removed, and is there again.
[[nodiscard]] inline std::string removed_line(const std::string& port) {
  return "port " + port + ": the interface was removed: no packets pass until an interface of this name exists again";
}
[[nodiscard]] inline std::string returned_line(const std::string& port) {
  return "port " + port + ": the interface exists again, and packets pass again";
}

// Frames and bytes of frames, without the header in front. A train counts as one.
struct PortCounters {
  std::uint64_t frames_received = 0, bytes_received = 0;
  std::uint64_t frames_sent = 0, bytes_sent = 0;
  std::uint64_t dropped_overrun = 0;     // before they were received: this process was slow and the socket's buffer full
  std::uint64_t dropped_unreadable = 0;  // received: the kernel could not describe them, or longer than any buffer
  std::uint64_t dropped_full = 0;        // to be sent: no room in queue or socket
  std::uint64_t dropped_refused = 0;     // to be sent: longer than the MTU, interface down, no guest
  std::uint64_t dropped_train = 0;       // to be sent: trains, at a port that cannot cut them
  std::uint64_t dropped_malformed = 0;   // to be sent: impossible header or length
  std::uint64_t marked = 0;              // received or sent, with a mark that says that a queue of this port was long

  PortCounters& operator+=(const PortCounters& other);
};

// Sends frames through a port. Belongs to one thread.
class PortSender {
 public:
  virtual ~PortSender() = default;
  PortSender() = default;
  PortSender(const PortSender&) = delete;
  PortSender& operator=(const PortSender&) = delete;

  // Sends queued frames first, then these, in order and without waiting. The caller may change the frames afterwards. Frames
  // may be marked here.
  virtual void send(std::span<iovec> frames) = 0;
  [[nodiscard]] virtual PortCounters counters() const = 0;
};

class Port : public PortSender {
 public:
  // Appends the frames that are there, up to a bound, without waiting. Valid until the next call.
  virtual void receive(std::vector<RxView>& into, const Endpoint& source) = 0;

  // A sender beside this one, for another thread, as long as this port lives; null: there cannot be two. What each sends
  // keeps its order. counters() are without its own.
  [[nodiscard]] virtual std::unique_ptr<PortSender> another_sender() { return nullptr; }

  // Checks whether the underlying interface has gone or come back, and reattaches to it. Returns in words what has happened
  // since the last call; empty: nothing. Call this now and then.
  [[nodiscard]] virtual std::string look_after() { return {}; }

  // Whether the underlying interface was there when look_after() was called last.
  [[nodiscard]] virtual bool attached() const { return true; }

  [[nodiscard]] virtual int descriptor() const = 0;  // readable: there is something to receive
  // Whether frames wait for room: send() again when room_descriptor() is writable.
  [[nodiscard]] virtual bool waiting() const { return false; }
  [[nodiscard]] virtual int room_descriptor() const { return -1; }

  [[nodiscard]] virtual std::uint64_t queued_bytes() const = 0;  // as Transport's
  [[nodiscard]] virtual std::string warning() const = 0;         // empty, or which buffer is too small, and how to raise it
};

// A port from text, in this thread's network namespace:
//   eth:IFNAME, or IFNAME alone   an Ethernet interface (packet_port.h)
//   xdp:IFNAME                    an Ethernet interface whose frames the kernel does not see (xdp_port.h)
//   qemu:LOCAL,REMOTE             QEMU's -netdev dgram (qemu_port.h). LOCAL is this side and REMOTE the guest's: both
//                                 paths of Unix sockets, with a '/' in them (qemu:./wire0,./vm0), or both HOST:PORT
// Throws Error: bad_argument (the text, or no such interface), refused (not permitted, interface down, address in use).
[[nodiscard]] std::unique_ptr<Port> open_port(const std::string& text, const PortOptions& options = {});

}  // namespace netsum::transport
