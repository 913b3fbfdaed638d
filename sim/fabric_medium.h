// A medium of our own: ports and wires (sim/fabric.h) under one queue of events.
#pragma once

#include <vector>

#include "sim/own_medium.h"

namespace netsum::sim {

class FabricMedium final : public OwnMedium {
 public:
  // The topology outlives it.
  FabricMedium(const Topology& topology, std::uint64_t seed, Time origin, bool random_ties = false)
      : OwnMedium(seed, origin, random_ties), fabric_(topology, seed, origin) {}

  [[nodiscard]] bool carry(Time at, std::uint32_t frame, NodeId from, NodeId to, std::uint32_t bytes,
                           const Traits& traits) override;
  [[nodiscard]] const PortCounts& counts(NodeId node, Fabric::Way way) const override { return fabric_.counts(node, way); }
  [[nodiscard]] std::uint64_t queued_bytes(NodeId node, Fabric::Way way) const override {
    return fabric_.queued_bytes(node, way, now_);
  }

 private:
  static constexpr std::uint32_t hop = UINT32_MAX;  // a frame that comes to a node
  struct Frame {
    NodeId at = 0, to = 0;
    std::uint32_t bytes = 0;
    bool marked = false;
  };

  [[nodiscard]] bool carry_out(Due what, User& user) override;
  // Whether it is under way.
  [[nodiscard]] bool forward(Time at, std::uint32_t frame);

  Fabric fabric_;
  std::vector<Frame> frames_;  // by their numbers
};

}  // namespace netsum::sim
