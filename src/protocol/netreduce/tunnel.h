// The accelerator for hosts that reach it through UDP datagrams, each with one RoCEv2 packet from its IP header on. Only
// registered connections are carried, each from its host's address to its peer's.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/accelerator.h"
#include "protocol/netreduce/connection.h"
#include "wire/parse_error.h"

namespace netsum::netreduce {

// `taken` ones also count in the accelerator's counters.
struct TunnelCounters {
  std::uint64_t malformed[wire::parse_error_kinds] = {};
  std::uint64_t unknown = 0;         // of no registered connection
  std::uint64_t dropped_source = 0;  // not from its connection's source endpoint
  std::uint64_t passed = 0;          // forwarded unchanged
  std::uint64_t taken = 0;           // by the accelerator
  std::uint64_t unbelieved = 0;      // of a ring with keys, without a neighbour's seal

  static constexpr auto fields() {
    using enum CounterKind;
    using C = TunnelCounters;
    return std::to_array<CounterField<C>>({
        {"roce_passed", &C::passed, outcome},
        {"roce_taken", &C::taken, outcome},
        {"dropped_roce_unknown", &C::unknown, outcome},
        {"dropped_roce_source", &C::dropped_source, outcome},
        {"dropped_roce_seal", &C::unbelieved, outcome},
    });
  }

  // Packets that belong to no ring.
  [[nodiscard]] std::uint64_t strangers() const { return outcomes(*this) - passed - taken; }
};

// A carried connection, with the endpoints that its packets come from and go to.
struct TunnelRoute {
  Connection connection;
  Endpoint from, to;
};

// A ring at an accelerator, and all connections of the ring that pass through it (racks.h).
struct TunnelRing {
  RingConfig ring;
  std::vector<TunnelRoute> routes;
};

class Tunnel {
 public:
  // As Accelerator::add_ring. Also false if a connection is already carried.
  [[nodiscard]] bool add_ring(Accelerator::RingState&& state, const TunnelRing& ring);  // from which `state` was made
  [[nodiscard]] bool add_ring(const TunnelRing& ring, std::span<std::byte> memory) {
    return add_ring(Accelerator::make_ring(ring.ring, memory), ring);
  }
  Accelerator::RingState remove_ring(std::uint64_t incarnation);  // null: unknown

  // The ring's connections are these from now on.
  void reroute(std::uint64_t incarnation, const std::vector<TunnelRoute>& routes);

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);
  void count_unbelieved(std::uint64_t packets) { counters_.unbelieved += packets; }  // kept from it (seal/hops.h)

  [[nodiscard]] bool carries(const Connection& connection) const { return routes_.contains(connection); }
  [[nodiscard]] Accelerator& accelerator() { return accelerator_; }
  [[nodiscard]] const Accelerator& accelerator() const { return accelerator_; }
  [[nodiscard]] const TunnelCounters& counters() const { return counters_; }

 private:
  struct Route {
    Endpoint from, to;
    std::uint64_t incarnation = 0;
  };

  std::unordered_map<Connection, Route, ConnectionHash> routes_;
  const Route* last_ = nullptr;  // of the previous packet: packets of one connection come in trains
  Connection last_connection_;
  Accelerator accelerator_;
  TunnelCounters counters_;
};

}  // namespace netsum::netreduce
