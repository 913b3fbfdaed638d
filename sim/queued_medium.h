// A medium like sim/fabric_medium.h, whose ports have queues frame by frame: for priorities, random early detection,
// priority flow control, and networks with several paths. It takes two events a hop in place of one; where none of these is
// asked for, both have the same times.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/own_medium.h"
#include "sim/port.h"
#include "sim/red.h"
#include "sim/routes.h"

namespace netsum::sim {

class QueuedMedium final : public OwnMedium {
 public:
  // The topology outlives it.
  QueuedMedium(const Topology& topology, std::uint64_t seed, Time origin, bool random_ties = false);

  [[nodiscard]] bool carry(Time at, std::uint32_t frame, NodeId from, NodeId to, std::uint32_t bytes,
                           const Traits& traits) override;
  [[nodiscard]] const PortCounts& counts(LinkId link, Fabric::Way way) const override {
    return ports_[port_of(link, way)].counts;
  }
  [[nodiscard]] std::uint64_t queued_bytes(LinkId link, Fabric::Way way) const override;

 private:
  using PortId = std::uint32_t;  // of a link: twice its number upwards, and one more downwards
  static constexpr std::uint32_t none = UINT32_MAX;
  // Of events: frames that begin, and come to a node; ports that have sent a frame, or are told to wait or to go on.
  static constexpr std::uint32_t begin = UINT32_MAX, hop = begin - 1, sent = begin - 2, wait = begin - 3, go_on = begin - 4;

  struct Frame {
    NodeId at = 0, to = 0;
    std::uint32_t bytes = 0;
    std::uint32_t flow = 0;
    std::uint32_t next = none;  // in its queue
    PortId came_by = none;      // to the node where it waits
    Time came{};
    std::uint8_t priority = 0;
    bool marked = false, lost = false;
  };
  struct Queue {
    std::uint32_t first = none, last = none;  // frames
    std::uint64_t bytes = 0;                  // of those that wait
  };
  // What a node got by a port and has not sent on, of one priority.
  struct Room {
    std::uint64_t bytes = 0;
    bool waits = false;  // the port has been told to
  };
  struct Port {
    const PortPlan* plan = nullptr;
    NodeId from = no_node, to = no_node;
    PortClock clock;
    PortLosses losses;
    std::array<Queue, priorities> queues;
    std::array<Room, priorities> rooms;  // where it sends to
    std::uint32_t sending = none;        // a frame
    std::uint8_t used = 0, waits = 0;    // priorities: with frames that wait; that were told to
    Time went_on{};                      // when it was told last
    Time waits_since{};
    Time empty_since{};
    std::vector<Red> red;  // of each priority
    PortCounts counts;
  };

  [[nodiscard]] static PortId port_of(LinkId link, Fabric::Way way) { return 2 * link + (way == Fabric::Way::down ? 1 : 0); }
  [[nodiscard]] bool lossless(std::uint8_t priority) const {
    return topology_.pfc && (topology_.pfc->of >> priority & 1) != 0;
  }
  [[nodiscard]] bool carry_out(Due what, User& user) override;
  // Whether it is under way.
  [[nodiscard]] bool forward(std::uint32_t frame);
  [[nodiscard]] bool takes(Port& port, Frame& frame);
  [[nodiscard]] bool refused_early(Port& port, const Frame& frame, std::uint64_t queued);
  [[nodiscard]] std::uint64_t waiting(const Port& port, std::uint8_t priority) const;
  void serve(PortId id);
  void leave(PortId id);
  void use_room(const Frame& frame);
  void tell(PortId port, std::uint8_t priority, bool to_wait);
  void told(PortId port, std::uint8_t priority, bool to_wait);
  [[nodiscard]] std::uint64_t headroom(const Port& port, const Port& back) const;
  void arrive(std::uint32_t frame, NodeId from, NodeId to, Time at);

  const Topology& topology_;
  const Time origin_;
  Routes routes_;
  std::vector<Port> ports_;
  std::vector<std::uint64_t> shared_;  // by node: bytes in its ports' queues
  std::vector<Frame> frames_;          // by their numbers
  std::uint32_t longest_ = 0;          // frame: bytes
};

}  // namespace netsum::sim
