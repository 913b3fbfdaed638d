// A protocol's view of the network: received datagrams, and a sink for datagrams to send.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/endpoint.h"

namespace netsum {

// One received datagram, after segment trains were split. Valid until on_packets() returns.
struct RxView {
  std::span<const std::byte> bytes;
  Endpoint source;
  bool congested = false;  // its IP header said CE (ECN, congestion experienced): a queue on the way was long
};

// Member by member: a whole view would be read from memory before its parts are there, which stalls a core.
inline void add_view(std::vector<RxView>& to, std::span<const std::byte> bytes, const Endpoint& source,
                     bool congested = false) {
  RxView& view = to.emplace_back();
  view.bytes = bytes;
  view.source = source;
  view.congested = congested;
}

// Collects the datagrams of one batch. Nothing needs to leave before flush(), which the event loop calls after each batch.
class Sink {
 public:
  // A place for one datagram of exactly `bytes` bytes to `to`, to be filled before the next call on this sink. Inside a
  // segment train, so consecutive datagrams of equal size to one destination cost one system call.
  virtual std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) = 0;

  // The same around bytes that are there already, with places in front of them and behind them. They may be sent by
  // reference: `body` must not change before flush() returns.
  struct Around {
    std::span<std::byte> head, tail;
  };
  virtual Around around(const Endpoint& to, std::size_t head, std::span<const std::byte> body, std::size_t tail) {
    const std::span<std::byte> whole = datagram(to, head + body.size() + tail);
    std::copy(body.begin(), body.end(), whole.subspan(head).begin());
    return {whole.first(head), whole.last(tail)};
  }

  // One datagram to several destinations, by reference: `packet` must not change before flush() returns; `to` must
  // stay valid, and consecutive calls with the same `to.data()` and packet size share segment trains.
  virtual void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) = 0;

  // Hands everything to the network now. After it, referenced packets may change.
  virtual void flush() = 0;

 protected:
  ~Sink() = default;
};

}  // namespace netsum
