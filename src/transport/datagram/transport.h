// Moving datagrams: kernel UDP (udp.h), an in-memory network (fake.h), or either with injected loss (lossy.h).
//
// A transport belongs to one thread. The event loop polls descriptor(), calls receive(), hands the views to a protocol,
// which writes into sink(), then sink().flush().
//
// It gives two signs of congestion: a long queue on the way (RxView::congested, from the IP header, where both ends use
// ECN), and the length of the local receive queue (queued_bytes()).
#pragma once

#include <linux/filter.h>

#include <cstdint>
#include <span>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"

namespace netsum::transport {

struct Counters {
  std::uint64_t packets_sent = 0, packets_received = 0;
  std::uint64_t wire_bytes_sent = 0, wire_bytes_received = 0;  // Ethernet (14) + IP + UDP + datagram
  std::uint64_t dropped_injected = 0;                          // by lossy.h; counted as received too
  std::uint64_t send_failures = 0;   // datagrams that the kernel refused (full buffer, unreachable)
  std::uint64_t truncated = 0;       // longer than any receive buffer
  std::uint64_t dropped_kernel = 0;  // by the kernel: its buffer was full, or the filter refused it; a train counts once

  static constexpr auto fields() {
    using enum CounterKind;
    using C = Counters;
    return std::to_array<CounterField<C>>({
        {"packets_received", &C::packets_received, other},
        {"packets_sent", &C::packets_sent, other},
        {"wire_bytes_received", &C::wire_bytes_received, other},
        {"wire_bytes_sent", &C::wire_bytes_sent, other},
        {"dropped_injected", &C::dropped_injected, other},
        {"send_failures", &C::send_failures, other},
        {"truncated", &C::truncated, other},
        {"dropped_kernel", &C::dropped_kernel, other},
    });
  }
};

class Transport {
 public:
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // The datagrams that are there now, without waiting; empty if none. Valid until the next call.
  [[nodiscard]] virtual std::span<const RxView> receive() = 0;
  [[nodiscard]] virtual Sink& sink() = 0;

  // Readable when receive() has something; -1: nothing says so, and whoever waits looks again and again (in-memory networks,
  // and ports that are polled).
  [[nodiscard]] virtual int descriptor() const = 0;
  [[nodiscard]] virtual Endpoint local() const = 0;  // with the real port, and the real address once connected
  [[nodiscard]] virtual Counters counters() const = 0;
  // counters().dropped_kernel, also while other threads send through sinks of their own.
  [[nodiscard]] virtual std::uint64_t dropped_kernel() const { return counters().dropped_kernel; }

  // Bytes queued for receive(): of datagrams (in-memory network), or of the larger buffers that hold them (kernel socket). A
  // kernel may still count recently received data, up to a quarter of the buffer, until its queue is empty. A system call:
  // call it once per batch, not per datagram.
  [[nodiscard]] virtual std::uint64_t queued_bytes() const = 0;
  // The most that can be queued, in the same bytes; 0: practically unbounded.
  [[nodiscard]] virtual std::uint64_t receive_buffer_bytes() const { return 0; }

  // Datagrams to `to` leave from this address of the host, until one from there arrives at another: for whoever sends first
  // to a peer that knows it by that address. Any thread's. Nothing changes where the transport has one address.
  virtual void send_from(const Endpoint& /*to*/, const Endpoint& /*own*/) {}

  // Whether datagrams that are too long for the path may travel in pieces (the default). No: they are lost, and that shows
  // its MTU. Nothing changes where the transport makes no pieces.
  virtual void allow_fragments(bool /*allowed*/) {}

  // Has the kernel drop datagrams that `program` (classic BPF) refuses; replaces the former program; empty: drop nothing.
  // False: not possible, and the former program stays. The program sees a datagram from its UDP header on.
  [[nodiscard]] virtual bool set_filter(std::span<const sock_filter> /*program*/) { return false; }
};

}  // namespace netsum::transport
