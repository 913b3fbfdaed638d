// An in-memory network for one thread, without loss: flushed datagrams are there at the next receive(), in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "transport/datagram/transport.h"

namespace netsum::transport {

class FakeNetwork {
 public:
  FakeNetwork();
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // An endpoint of this network; the network must outlive it. Port 0: any free one. Throws Error: refused (address taken).
  [[nodiscard]] std::unique_ptr<Transport> attach(Endpoint address);

  // Whether datagrams flushed to this address from now on arrive marked as from a long queue (RxView::congested).
  void congest(const Endpoint& to, bool congested = true);

 private:
  class Port;
  std::map<Endpoint, Port*> ports_;
  std::set<Endpoint> congested_;
  std::uint16_t next_port_ = 49152;
};

}  // namespace netsum::transport
