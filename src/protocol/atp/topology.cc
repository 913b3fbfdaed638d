#include "protocol/atp/topology.h"

#include <algorithm>

namespace netsum::atp {

using wire::atp::Directions;
using wire::atp::max_fan_in;
using wire::atp::max_levels;
using wire::atp::max_workers;

namespace {

// The number of steps from a switch to the server; none if the path is circular or leads nowhere.
std::optional<std::uint32_t> steps_to_server(const TopologyConfig& config, std::uint32_t from) {
  std::uint32_t steps = 1;
  for (std::uint32_t at = from; config.parent_of_switch[at] != at_server; ++steps) {
    at = config.parent_of_switch[at];
    if (at >= config.parent_of_switch.size() || steps > config.parent_of_switch.size()) return std::nullopt;
  }
  return steps;
}

}  // namespace

std::string check(const TopologyConfig& config) {
  const std::size_t ranks = config.switch_of_rank.size(), switches = config.parent_of_switch.size();
  if (ranks == 0 || ranks > max_workers) {
    return std::to_string(ranks) + " ranks are not between 1 and " + std::to_string(max_workers);
  }
  for (std::uint32_t i = 0; i < switches; ++i) {
    if (!steps_to_server(config, i)) return "switch " + std::to_string(i) + " has no path to the parameter server";
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t at = config.switch_of_rank[rank];
    if (at != at_server && at >= switches) return "rank " + std::to_string(rank) + " is at a switch that does not exist";
    // Checked before levels are counted, in a few bits.
    if (at != at_server && *steps_to_server(config, at) >= max_levels) {
      return "more than " + std::to_string(max_levels - 1) + " levels of switches above a rank";
    }
  }
  const Topology topology(config);
  const auto too_many = [](const std::vector<Topology::Child>& children, const std::string& who) -> std::string {
    if (children.size() <= max_fan_in) return "";
    return who + " has " + std::to_string(children.size()) + " ranks and switches below it, and takes at most " +
           std::to_string(max_fan_in) + ": put switches in between";
  };
  for (std::uint32_t i = 0; i < switches; ++i) {
    if (auto error = too_many(topology.children(i), "switch " + std::to_string(i)); !error.empty()) return error;
  }
  return too_many(topology.server_children(), "the parameter server");
}

Topology::Topology(const TopologyConfig& config) : switch_of_rank_(config.switch_of_rank) {
  const auto switches = static_cast<std::uint32_t>(config.parent_of_switch.size());
  const auto world_size = static_cast<std::uint32_t>(config.switch_of_rank.size());
  nodes_.resize(switches + 1);
  const auto node_of = [&](std::uint32_t index) -> Node& { return nodes_[std::min(index, switches)]; };
  for (std::uint32_t i = 0; i < switches; ++i) nodes_[i].parent = config.parent_of_switch[i];

  // Only switches with ranks below take part.
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    for (std::uint32_t at = config.switch_of_rank[rank];; at = nodes_[at].parent) {
      node_of(at).below.insert(rank);
      if (at == at_server) break;
    }
  }
  for (std::uint32_t i = 0; i < switches; ++i) {
    if (nodes_[i].below.empty()) continue;
    node_of(nodes_[i].parent).children.push_back({true, i});
    // Raises the level of every switch on the way up above this one: the longest path from below decides.
    std::uint8_t level = nodes_[i].level;
    for (std::uint32_t at = i; at != at_server;) {
      at = nodes_[at].parent;
      Node& above = node_of(at);
      above.level = std::max<std::uint8_t>(above.level, ++level);
      level = above.level;
    }
  }
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    node_of(config.switch_of_rank[rank]).children.push_back({false, rank});
  }
}

Directions Topology::path(std::uint32_t rank) const {
  Directions::FanIn fan_in{};
  std::array<std::uint32_t, max_levels> positions{};
  Child child{false, rank};
  for (std::uint32_t at = switch_of_rank_[rank];; at = node(at).parent) {
    const auto& children = node(at).children;
    const std::uint8_t level = node(at).level;
    fan_in[level] = static_cast<std::uint16_t>(children.size());
    positions[level] = static_cast<std::uint32_t>(std::find(children.begin(), children.end(), child) - children.begin());
    if (at == at_server) break;
    child = {true, at};
  }
  Directions path(node(switch_of_rank_[rank]).level, fan_in);
  for (std::uint32_t level = 0; level < max_levels; ++level) {
    if (fan_in[level] != 0) path.insert(level, positions[level]);
  }
  return path;
}

Ranks Topology::below(const Child& child) const {
  if (child.is_switch) return nodes_[child.index].below;
  Ranks one;
  one.insert(child.index);
  return one;
}

std::optional<Ranks> Topology::decode(const Directions& directions) const {
  const Node* node = &nodes_.back();
  for (bool top = true;; top = false) {
    if (directions.fan_in()[node->level] != node->children.size()) return std::nullopt;
    if (const std::optional<std::uint32_t> only = directions.only(node->level)) {
      const Child& child = node->children[*only];
      if (!child.is_switch) return below(child);
      node = &nodes_[child.index];
      continue;
    }
    const wire::atp::Children bits = directions.children(node->level);
    if (top || bits.empty()) return std::nullopt;  // the packet came from one of the server's children
    if (bits.size() == node->children.size()) return node->below;
    Ranks all;
    bits.for_each([&](std::uint32_t position) {
      const Child& child = node->children[position];
      if (child.is_switch) {
        all = all.united(below(child));
      } else {
        all.insert(child.index);
      }
    });
    return all;
  }
}

}  // namespace netsum::atp
