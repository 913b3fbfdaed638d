// What a job's sums cost the network: how much each port and process has to do for each element, and how long a chunk is on
// its way.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/experiment.h"

namespace netsum::sim {

// Ports and threads alike: so much work a second.
class Resources {
 public:
  explicit Resources(const Experiment& experiment);
  [[nodiscard]] static std::size_t up(NodeId node) { return 2 * std::size_t{node}; }
  [[nodiscard]] static std::size_t down(NodeId node) { return up(node) + 1; }
  [[nodiscard]] std::size_t process(std::size_t process) const { return first_process_ + process; }  // aggregators, switches
  [[nodiscard]] std::size_t size() const { return capacity_.size(); }
  [[nodiscard]] double capacity(std::size_t resource) const { return capacity_[resource]; }  // bytes or seconds, a second

  // Calls with each port on the way.
  template <class Use>
  static void along(const Topology& topology, NodeId at, NodeId to, const Use& use) {
    while (at != to) {
      const NodeId next = topology.next(at, to);
      const bool upward = next == topology[at].above;
      use(upward ? up(at) : down(next), upward ? topology[at].up : topology[next].down);
      at = next;
    }
  }

 private:
  std::size_t first_process_;
  std::vector<double> capacity_;
};

struct FlowPaths {
  std::vector<double> load;  // of each resource, for an element
  double window = 0;         // elements that are on their way at most
  double most = 0;           // elements a second, that ranks and their window allow
  double round_trip = 0;     // seconds: of a chunk, through the deepest switches
  double first_round = 0;    // before the first values of a stream that was idle
};
[[nodiscard]] FlowPaths paths_of(const Experiment& experiment, const ExperimentJob& job, const Resources& resources);

}  // namespace netsum::sim
