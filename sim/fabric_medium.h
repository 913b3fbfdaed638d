// A medium of our own: ports and wires (sim/fabric.h) under one queue of events.
#pragma once

#include <vector>

#include "sim/event_queue.h"
#include "sim/medium.h"

namespace netsum::sim {

class FabricMedium final : public Medium {
 public:
  // The topology outlives it.
  FabricMedium(const Topology& topology, std::uint64_t seed, Time origin, bool random_ties = false)
      : fabric_(topology, seed, origin), now_(origin), seed_(seed), random_ties_(random_ties) {}

  [[nodiscard]] Time now() const override { return now_; }
  void add(Time at, Due what) override { queue_.add(at, what); }
  [[nodiscard]] bool carry(Time at, std::uint32_t frame, NodeId from, NodeId to, std::uint32_t bytes,
                           const Traits& traits) override;
  [[nodiscard]] bool run(User& user, Time end) override;
  void stop() override { stopped_ = true; }

  [[nodiscard]] const PortCounts& counts(NodeId node, Fabric::Way way) const override { return fabric_.counts(node, way); }
  [[nodiscard]] std::uint64_t queued_bytes(NodeId node, Fabric::Way way) const override {
    return fabric_.queued_bytes(node, way, now_);
  }
  [[nodiscard]] std::uint64_t left_bytes(NodeId node, Fabric::Way way) const override {
    return counts(node, way).bytes - queued_bytes(node, way);
  }
  [[nodiscard]] bool breaks_ties() const override { return random_ties_; }
  [[nodiscard]] std::uint64_t hops() const override { return hops_; }
  [[nodiscard]] std::uint64_t events() const override { return events_; }

 private:
  static constexpr std::uint32_t hop = UINT32_MAX;  // a frame that comes to a node
  struct Frame {
    NodeId at = 0, to = 0;
    std::uint32_t bytes = 0;
    bool marked = false;
  };

  // Whether it is under way.
  [[nodiscard]] bool forward(Time at, std::uint32_t frame);

  Fabric fabric_;
  EventQueue<Due> queue_;
  std::vector<Frame> frames_;  // by their numbers
  Time now_;
  std::uint64_t seed_;
  bool random_ties_;
  std::uint64_t hops_ = 0, events_ = 0;
  bool stopped_ = false;
};

}  // namespace netsum::sim
