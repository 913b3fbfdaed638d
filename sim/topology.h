// The shape of a network: nodes in a tree, and the link from each to the node above it. Data; sim/fabric.h moves packets.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/time.h"

namespace netsum::sim {

using NodeId = std::uint32_t;
inline constexpr NodeId no_node = UINT32_MAX;

// One direction of a link: the port that sends into it, and the wire behind.
struct PortPlan {
  std::uint64_t bits_per_second = 0;        // of Ethernet frames; 0: unlimited
  Duration delay{};                         // of the wire
  std::uint64_t buffer_bytes = UINT64_MAX;  // the port's own; what does not fit is dropped
  std::uint64_t mark_bytes = UINT64_MAX;    // a packet behind so many is marked (ECN)
  double loss = 0;                          // of packets
  double loss_burst = 1;                    // that are lost one after the other, on average; 1: each by itself
  struct Outage {
    Duration from{}, to{};
  };
  std::vector<Outage> outages{};  // what is sent meanwhile is lost; since the experiment's begin
};

// Fine enough for hundreds of millions of packets a second.
using PacketCost = std::chrono::duration<std::int64_t, std::femto>;

struct NodePlan {
  std::string name;
  NodeId above = no_node;  // none: the root
  bool is_switch = false;
  PortPlan up, down;                               // the link to the node above: away from this node, and towards it
  std::uint64_t shared_buffer_bytes = UINT64_MAX;  // of all the node's ports together
  PacketCost send_cost{}, receive_cost{};          // of each packet that a process here sends or receives
  std::uint32_t threads = 1;                       // that share this work, by port number
  std::uint32_t receive_packets = UINT32_MAX;      // that wait for a thread; what comes then is dropped
};

class Topology {
 public:
  // Nodes come after those above them. The name must be new.
  NodeId add(NodePlan plan);
  [[nodiscard]] const NodePlan& operator[](NodeId node) const { return nodes_[node]; }
  [[nodiscard]] NodePlan& operator[](NodeId node) { return nodes_[node]; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] std::optional<NodeId> find(const std::string& name) const;
  [[nodiscard]] std::uint32_t depth(NodeId node) const { return depths_[node]; }

  // The neighbour of `at` on the way to another node.
  [[nodiscard]] NodeId next(NodeId at, NodeId to) const;
  // `of` itself, or the next node above it for which `is` holds; none: there is none.
  template <class Is>
  [[nodiscard]] NodeId at_or_above(NodeId of, const Is& is) const {
    while (of != no_node && !is(of)) of = nodes_[of].above;
    return of;
  }

 private:
  std::vector<NodePlan> nodes_;
  std::vector<std::uint32_t> depths_;
  std::unordered_map<std::string, NodeId> names_;
};

// What all links, hosts and switches of a kind have in common.
struct Uniform {
  PortPlan link, trunk;        // of hosts, and between switches; the same both ways
  NodePlan host, switch_plan;  // costs and buffers
};

// `hosts` h0, h1, .. at one switch, sw.
[[nodiscard]] Topology star(std::uint32_t hosts, const Uniform& all);
// A tree of switches: `fan_out[0]` below the root, sw, `fan_out[1]` below each of these, .., and at last the hosts. Switches
// are named by their places, s0, s1, .. below the root, s0.0, s0.1, .. below s0; hosts are h0, h1, .. from left to right.
[[nodiscard]] Topology tree(const std::vector<std::uint32_t>& fan_out, const Uniform& all);
// Two switches, left and right, with half of the hosts at each; all that crosses shares their trunk.
[[nodiscard]] Topology shared_bottleneck(std::uint32_t left, std::uint32_t right, const Uniform& all);

}  // namespace netsum::sim
