// What a job's sums cost the network: how much each port and process has to do for each element, and how long a chunk is on
// its way.
#pragma once

#include <cstdint>
#include <string>
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
  // Of each resource, for an element: in a stream that goes on, and before its first results come. Until then ranks only
  // send, and switches only pass sums up.
  std::vector<double> load, first_load;
  double most = 0, first_most = 0;  // elements a second, that ranks allow
  double first_at_slowest = 0;  // seconds that the slowest port or process takes for an element, before the first results
  double packet = 0;            // elements
  double window = 0;            // elements that are on their way at most
  double first_window = 0;      // as long as the window grows, in a round trip by this factor
  double growth = 1;
  double round_trip = 0;  // seconds: of a whole packet, through the deepest switches
  double of_element = 0;  // of it, those that an element takes
  // An acknowledgement comes so long behind a result; and what a packet finds to be done before it, if it is sent when
  // acknowledgements are.
  double acknowledged_after = 0, acknowledging = 0;
  // Before the first values of a stream that was idle: a packet's way; what one takes at the slowest rank, port and process.
  double exponent_trip = 0, exponent_sent = 0, exponent_received = 0, exponent_at_port = 0, exponent_at_process = 0;
  bool costs = false, switch_costs = false;  // ranks or others, and switches below, take time for packets

  // The exponents' part of an operation that begins with an idle stream, whose values can be sent at this rate.
  [[nodiscard]] double exponents(double elements, double rate) const;
};
[[nodiscard]] bool has_flows(const std::string& protocol);  // whether they are known here
[[nodiscard]] FlowPaths paths_of(const Experiment& experiment, const ExperimentJob& job, const Resources& resources);

}  // namespace netsum::sim
