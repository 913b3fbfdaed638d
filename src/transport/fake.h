// A network in memory, in one thread, without loss: what one endpoint flushed is there when the other receives, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "transport/transport.h"

namespace netsum::transport {

class FakeNetwork {
 public:
  FakeNetwork();
  ~FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  // An endpoint of this network, which must outlive it. Port 0: any that is free. Throws Error: refused (address taken).
  [[nodiscard]] std::unique_ptr<Transport> attach(Endpoint address);

  // What is flushed to this address from now on arrives as from behind a long queue (RxView::congested), or no longer so.
  void congest(const Endpoint& to, bool congested = true);

 private:
  class Port;
  std::map<Endpoint, Port*> ports_;
  std::set<Endpoint> congested_;
  std::uint16_t next_port_ = 49152;
};

}  // namespace netsum::transport
