// Shortest ways through a network with several paths: a hash of the flow chooses among those that are as short (ECMP).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/topology.h"

namespace netsum::sim {

class Routes {
 public:
  // The topology outlives it.
  Routes(const Topology& topology, std::uint64_t seed);

  struct Step {
    NodeId node = no_node;  // the neighbour
    LinkId link = 0;
    bool up = false;  // along it
  };
  // From `at` to another node. Each switch has a hash of its own.
  [[nodiscard]] const Step& next(NodeId at, NodeId to, std::uint32_t flow);

 private:
  [[nodiscard]] const std::vector<std::uint16_t>& distances(NodeId to);

  std::uint64_t seed_;
  std::vector<std::vector<Step>> neighbours_;
  std::vector<std::vector<std::uint16_t>> distances_;  // by destination, once asked for: of all nodes
};

}  // namespace netsum::sim
