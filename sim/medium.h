// What is between the processes of an experiment: a network that carries frames, and the clock that all follow. Ours is
// sim/fabric_medium.h and sim/queued_medium.h; sim/ns3 has another.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/time.h"
#include "sim/fabric.h"
#include "sim/topology.h"

namespace netsum::sim {

// Something that its owner knows by a kind and an index.
struct Due {
  std::uint32_t kind = 0, index = 0;
};

// A connection of TCP's that sends as much as it can.
struct TcpPlan {
  NodeId from = 0, to = 0;
  std::string congestion_control;
  Duration start{}, stop = Duration::max();
};

class Medium {
 public:
  // Who sends frames, which it knows by numbers: a number is free again once the frame has arrived or is gone.
  class User {
   public:
    virtual void due(Due what) = 0;
    virtual void arrived(std::uint32_t frame, bool marked) = 0;
    virtual void gone(std::uint32_t frame) = 0;

   protected:
    ~User() = default;
  };

  // Of a frame: what chooses its path, if there are several, and its class.
  struct Traits {
    std::uint32_t flow = 0;
    std::uint8_t priority = 0;  // below `priorities`; the highest goes first
  };

  virtual ~Medium() = default;

  [[nodiscard]] virtual Time now() const = 0;
  // Calls of due() come in the order of their times, at one time in the order of these calls.
  virtual void add(Time at, Due what) = 0;
  // A frame of so many bytes, Ethernet's header included, leaves a node at a time that is not before now. False: it is gone.
  [[nodiscard]] virtual bool carry(Time at, std::uint32_t frame, NodeId from, NodeId to, std::uint32_t bytes,
                                   const Traits& traits) = 0;
  // Before run(). The number by which tcp_bytes() knows it; none: it has no TCP of its own.
  [[nodiscard]] virtual std::optional<std::size_t> add_tcp(const TcpPlan&) { return std::nullopt; }
  [[nodiscard]] virtual std::uint64_t tcp_bytes(std::size_t) const { return 0; }  // received
  // Whether frames that come to a node at one time, by different links, are in an order that the seed draws.
  [[nodiscard]] virtual bool breaks_ties() const { return false; }
  // Until nothing is due any more, stop() was called, or `end` has passed: false where something is due behind it. A call
  // that throws ends it, too.
  [[nodiscard]] virtual bool run(User& user, Time end) = 0;
  virtual void stop() = 0;

  [[nodiscard]] virtual const PortCounts& counts(LinkId link, Fabric::Way way) const = 0;
  [[nodiscard]] virtual std::uint64_t queued_bytes(LinkId link, Fabric::Way way) const = 0;
  [[nodiscard]] virtual std::uint64_t left_bytes(LinkId link, Fabric::Way way) const = 0;  // that are past the port
  [[nodiscard]] virtual std::uint64_t hops() const = 0;                                    // of frames, over a link each
  [[nodiscard]] virtual std::uint64_t events() const = 0;                                  // that it handled
};

}  // namespace netsum::sim
