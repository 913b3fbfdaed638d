#include "sim/routes.h"

#include <algorithm>
#include <stdexcept>

#include "sim/random.h"

namespace netsum::sim {

Routes::Routes(const Topology& topology, std::uint64_t seed)
    : seed_(seed), neighbours_(topology.size()), distances_(topology.size()) {
  for (LinkId link = 0; link < topology.links(); ++link) {
    const NodeId lower = topology.lower(link), upper = topology.upper(link);
    if (upper == no_node) continue;
    neighbours_[lower].push_back({upper, link, true});
    neighbours_[upper].push_back({lower, link, false});
  }
}

const std::vector<std::uint16_t>& Routes::distances(NodeId to) {
  std::vector<std::uint16_t>& found = distances_[to];
  if (!found.empty()) return found;
  found.assign(neighbours_.size(), UINT16_MAX);
  std::vector<NodeId> reached{to};
  found[to] = 0;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (const Step& step : neighbours_[reached[i]]) {
      if (found[step.node] != UINT16_MAX) continue;
      found[step.node] = static_cast<std::uint16_t>(found[reached[i]] + 1);
      reached.push_back(step.node);
    }
  }
  return found;
}

const Routes::Step& Routes::next(NodeId at, NodeId to, std::uint32_t flow) {
  const std::vector<Step>& all = neighbours_[at];
  if (all.size() == 1) return all.front();
  // A host's ways are those to its switch, so that there are distances of switches alone.
  if (neighbours_[to].size() == 1) {
    const NodeId above = neighbours_[to].front().node;
    if (above == at) return *std::find_if(all.begin(), all.end(), [&](const Step& step) { return step.node == to; });
    to = above;
  }
  const std::vector<std::uint16_t>& far = distances(to);
  const auto nearer = [&](const Step& step) { return far[step.node] < far[at]; };
  const auto count = static_cast<std::uint64_t>(std::count_if(all.begin(), all.end(), nearer));
  std::uint64_t which = count == 1 ? 0 : mix(seed_ ^ mix(std::uint64_t{at} << 32 | flow)) % count;
  for (const Step& step : all) {
    if (nearer(step) && which-- == 0) return step;
  }
  throw std::invalid_argument("there is no way between two nodes");
}

}  // namespace netsum::sim
