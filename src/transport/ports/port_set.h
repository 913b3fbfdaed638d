// Several ports as one transport: receives frames from all ports, and sends each frame to the port that it names. A UDP
// socket may be beside them, for datagrams of the same thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/datagram/transport.h"
#include "transport/datagram/udp.h"
#include "transport/ports/port.h"
#include "transport/system/socket.h"

namespace netsum::transport {

// The name of a port in RxView::source and in Sink's destinations: an address that no host has ("port", then zeros), and the
// port's number in the set as the UDP port.
[[nodiscard]] Endpoint port_endpoint(std::uint16_t number);
[[nodiscard]] bool is_port(const Endpoint& endpoint);

// Frames to a port keep their order across datagram() and multicast(). port.h has their form. RxView::congested is never
// set: readers of the frame see the IP header.
class PortSet final : public Transport {
 public:
  // `beside`: datagrams to endpoints that are no ports leave there. Null: there are none.
  explicit PortSet(std::vector<std::unique_ptr<Port>> ports, std::unique_ptr<Udp> beside = nullptr);
  ~PortSet() override;

  std::span<const RxView> receive() override;  // frames first, then datagrams
  Sink& sink() override;
  int descriptor() const override;
  Endpoint local() const override;  // the socket's; a wire has no address
  void send_from(const Endpoint& to, const Endpoint& own) override;
  bool set_filter(std::span<const sock_filter> program) override;  // for datagrams
  // Sums over the ports, without the virtio headers. truncated: dropped_unreadable; send_failures: frames to be sent that
  // were dropped. With the socket's.
  Counters counters() const override;
  std::uint64_t dropped_kernel() const override;  // of datagrams
  std::uint64_t queued_bytes() const override;

  [[nodiscard]] std::span<const Endpoint> endpoints() const { return endpoints_; }  // by number
  [[nodiscard]] std::vector<std::string> look_after();                              // Port::look_after() of all ports
  [[nodiscard]] const Port& port(std::size_t number) const { return *ports_.at(number); }
  // With what other_sink()s sent, whose threads do not send now.
  [[nodiscard]] PortCounters port_counters(std::size_t number) const;

  // Another sink, for another thread, which may use it beside sink() as long as the set lives. Frames of different sinks
  // keep no order. Throws Error: bad_argument, if a port has one sender only.
  [[nodiscard]] Sink& other_sink();

 private:
  class Outbox;

  void send(std::size_t number, std::span<iovec> frames);

  std::vector<std::unique_ptr<Port>> ports_;
  std::unique_ptr<Udp> beside_;
  std::vector<Endpoint> endpoints_;
  Descriptor poll_;                 // epoll
  std::vector<char> room_watched_;  // by number: whether poll_ waits for its room_descriptor() too
  std::vector<RxView> received_;
  std::unique_ptr<Outbox> outbox_;
  struct Other {
    std::vector<std::unique_ptr<PortSender>> senders;  // by number
    std::unique_ptr<Outbox> outbox;
  };
  std::deque<Other> others_;
};

// The ports that these texts name (open_port), each at most once. Throws Error.
[[nodiscard]] std::vector<std::unique_ptr<Port>> open_ports(std::span<const std::string> texts,
                                                            const PortOptions& options = {});

}  // namespace netsum::transport
