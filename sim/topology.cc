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

void Topology::add_link(LinkPlan link) {
  several_.resize(nodes_.size());
  several_[link.lower] = true;
  more_.push_back(std::move(link));
}

std::vector<LinkId> Topology::links_above(NodeId node) const {
  std::vector<LinkId> found;
  if (nodes_[node].above != no_node) found.push_back(node);
  for (std::size_t i = 0; i < more_.size(); ++i) {
    if (more_[i].lower == node) found.push_back(static_cast<LinkId>(nodes_.size() + i));
  }
  return found;
}

std::string Topology::link_name(LinkId link) const {
  const NodeId node = lower(link);
  const bool several = node < several_.size() && several_[node];
  return nodes_[node].name + (several ? "-" + nodes_[upper(link)].name : "");
}

std::optional<LinkId> Topology::find_link(const std::string& name) const {
  const auto node = find(name.substr(0, name.find('-')));
  if (!node) return std::nullopt;
  for (const LinkId link : links_above(*node)) {
    if (link_name(link) == name) return link;
  }
  return std::nullopt;
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

Topology leaf_spine(std::uint32_t spines, std::uint32_t leaves, std::uint32_t hosts, const Uniform& all) {
  Topology topology;
  for (std::uint32_t i = 0; i < spines; ++i) topology.add(switch_plan("spine" + std::to_string(i), no_node, all));
  for (std::uint32_t i = 0; i < leaves; ++i) topology.add(switch_plan("leaf" + std::to_string(i), 0, all));
  for (std::uint32_t i = 0; i < leaves * hosts; ++i) topology.add(host(i, spines + i / hosts, all));
  for (NodeId leaf = spines; leaf < spines + leaves; ++leaf) {
    for (NodeId spine = 1; spine < spines; ++spine) topology.add_link({leaf, spine, all.trunk, all.trunk});
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
