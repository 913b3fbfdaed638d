// The network of an experiment: ports with queues, and wires behind them. Decides when a packet that is at one node is at
// the next one; the caller (sim/packet_level.h) moves it. State grows with the nodes, not with pairs of them.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "base/time.h"
#include "sim/port.h"
#include "sim/topology.h"

namespace netsum::sim {

inline constexpr std::size_t datagram_header_bytes = 42;  // Ethernet, IPv4, UDP

class Fabric {
 public:
  enum class Way : std::uint8_t { up, down };

  // The topology outlives it.
  Fabric(const Topology& topology, std::uint64_t seed, Time origin = {});

  struct Hop {
    NodeId node = 0;  // the next one
    Time at{};        // when the whole packet is there
    bool marked = false;
  };
  // A frame at a node, now, on its way to another. None: no room in the port's buffer, or lost behind it.
  // Calls for the ports of one node come in the order of their times.
  [[nodiscard]] std::optional<Hop> forward(Time now, NodeId at, NodeId to, std::uint64_t frame_bytes);

  [[nodiscard]] const PortCounts& counts(NodeId node, Way way) const { return port(node, way).counts; }
  [[nodiscard]] std::uint64_t queued_bytes(NodeId node, Way way, Time now) const;

 private:
  struct Port {
    PortClock clock;
    PortLosses losses;
    NodeId sender = 0;  // the node that it belongs to
    PortCounts counts;
  };
  struct Leaving {
    std::uint64_t at, bytes;
    bool operator>(const Leaving& other) const { return at > other.at; }
  };
  // A buffer that a node's ports share.
  struct Shared {
    std::uint64_t bytes = 0;
    std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving;
  };

  [[nodiscard]] const Port& port(NodeId node, Way way) const {
    return ports_[2 * std::size_t{node} + (way == Way::down ? 1 : 0)];
  }
  [[nodiscard]] bool fits(Port& port, const PortPlan& plan, std::uint64_t now, std::uint64_t queued, std::uint64_t bytes);

  const Topology& topology_;
  const Time origin_;           // the experiment's begin
  std::vector<Port> ports_;     // of node i's link to the one above: [2 i] up, [2 i + 1] down
  std::vector<Shared> shared_;  // by node
};

}  // namespace netsum::sim
