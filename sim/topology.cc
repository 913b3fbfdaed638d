#include "sim/topology.h"

#include <utility>

namespace netsum::sim {
namespace {

NodePlan host(std::uint32_t index, NodeId above, const Uniform& all) {
  NodePlan plan = all.host;
  plan.name = "h" + std::to_string(index);
  plan.above = above;
  plan.up = plan.down = all.link;
  return plan;
}

NodePlan switch_plan(std::string name, NodeId above, const Uniform& all) {
  NodePlan plan = all.switch_plan;
  plan.name = std::move(name);
  plan.above = above;
  plan.is_switch = true;
  plan.up = plan.down = all.trunk;
  return plan;
}

}  // namespace

NodeId Topology::add(NodePlan plan) {
  const auto node = static_cast<NodeId>(nodes_.size());
  depths_.push_back(plan.above == no_node ? 0 : depths_[plan.above] + 1);
  names_.emplace(plan.name, node);
  nodes_.push_back(std::move(plan));
  return node;
}

std::optional<NodeId> Topology::find(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? std::nullopt : std::optional(found->second);
}

NodeId Topology::next(NodeId at, NodeId to) const {
  if (depths_[to] <= depths_[at]) return nodes_[at].above;
  while (depths_[to] > depths_[at] + 1) to = nodes_[to].above;
  return nodes_[to].above == at ? to : nodes_[at].above;
}

Topology star(std::uint32_t hosts, const Uniform& all) {
  return tree({hosts}, all);
}

Topology tree(const std::vector<std::uint32_t>& fan_out, const Uniform& all) {
  Topology topology;
  std::vector<NodeId> above{topology.add(switch_plan("sw", no_node, all))};
  std::uint32_t hosts = 0;
  for (std::size_t level = 0; level < fan_out.size(); ++level) {
    const bool last = level + 1 == fan_out.size();
    std::vector<NodeId> below;
    for (const NodeId node : above) {
      const std::string prefix = level == 0 ? "s" : topology[node].name + ".";
      for (std::uint32_t i = 0; i < fan_out[level]; ++i) {
        below.push_back(topology.add(last ? host(hosts++, node, all) : switch_plan(prefix + std::to_string(i), node, all)));
      }
    }
    above = std::move(below);
  }
  return topology;
}

Topology shared_bottleneck(std::uint32_t left, std::uint32_t right, const Uniform& all) {
  Topology topology;
  const NodeId first = topology.add(switch_plan("left", no_node, all)),
               second = topology.add(switch_plan("right", first, all));
  for (std::uint32_t i = 0; i < left + right; ++i) topology.add(host(i, i < left ? first : second, all));
  return topology;
}

}  // namespace netsum::sim
