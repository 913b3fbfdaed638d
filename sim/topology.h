// The shape of a network: nodes in a tree, and the link from each to the node above it; in a Clos network, more links
// upwards. Data; sim/fabric.h and sim/queued_medium.h move packets.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/time.h"

namespace netsum::sim {

using NodeId = std::uint32_t;
inline constexpr NodeId no_node = UINT32_MAX;

// Random early detection (Floyd and Jacobson, 1993), gentle: between two lengths of the queue, averaged, drops become
// likely, and behind the second one ever likelier.
struct RedPlan {
  std::uint64_t least_bytes = 0, most_bytes = 0;
  double most_chance = 0.1;  // at most_bytes
  double weight = 0.002;     // of a packet's queue in the average
  bool marks = false;        // in place of drops
};

inline constexpr std::uint32_t priorities = 8;  // the highest goes first

// Priority flow control (IEEE 802.1Qbb): a switch tells the port that sends to it to wait, so that nothing is dropped.
struct PfcPlan {
  std::uint8_t of = 0;                    // priorities, a bit each
  std::uint64_t off = 0, on = 0;          // bytes from one port: from the first on it waits, down to the second
  std::optional<std::uint64_t> headroom;  // for what comes until it does; none: as much as can come
};

// One direction of a link: the port that sends into it, and the wire behind.
struct PortPlan {
  std::uint64_t bits_per_second = 0;        // of Ethernet frames; 0: unlimited
  Duration delay{};                         // of the wire
  std::uint64_t buffer_bytes = UINT64_MAX;  // the port's own, of each priority; what does not fit is dropped
  std::uint64_t mark_bytes = UINT64_MAX;    // a packet behind so many is marked (ECN)
  double loss = 0;                          // of packets
  double loss_burst = 1;                    // that are lost one after the other, on average; 1: each by itself
  struct Outage {
    Duration from{}, to{};
  };
  std::vector<Outage> outages{};  // what is sent meanwhile is lost; since the experiment's begin
  std::optional<RedPlan> red{};
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

// A node's link to the node above it has the node's number; those that a Clos network has beside them, the next ones.
using LinkId = std::uint32_t;

struct LinkPlan {
  NodeId lower = no_node, upper = no_node;
  PortPlan up, down;
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

  // A link beside that to the node above, once all nodes are there.
  void add_link(LinkPlan link);
  [[nodiscard]] std::vector<LinkId> links_above(NodeId node) const;  // from it upwards
  [[nodiscard]] bool is_tree() const { return more_.empty(); }
  [[nodiscard]] LinkId links() const { return static_cast<LinkId>(nodes_.size() + more_.size()); }
  [[nodiscard]] NodeId lower(LinkId link) const { return link < nodes_.size() ? link : more_[link - nodes_.size()].lower; }
  // no_node: there is no such link.
  [[nodiscard]] NodeId upper(LinkId link) const {
    return link < nodes_.size() ? nodes_[link].above : more_[link - nodes_.size()].upper;
  }
  [[nodiscard]] const PortPlan& port(LinkId link, bool up) const {
    if (link >= nodes_.size()) return up ? more_[link - nodes_.size()].up : more_[link - nodes_.size()].down;
    return up ? nodes_[link].up : nodes_[link].down;
  }
  [[nodiscard]] PortPlan& port(LinkId link, bool up) { return const_cast<PortPlan&>(std::as_const(*this).port(link, up)); }
  // "h0": the lower node's; "leaf0-spine1" where that has several.
  [[nodiscard]] std::string link_name(LinkId link) const;
  [[nodiscard]] std::optional<LinkId> find_link(const std::string& name) const;

  std::optional<PfcPlan> pfc{};  // of all switches

  // The neighbour of `at` on the way to another node, in a tree.
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
  std::vector<LinkPlan> more_;  // links
  std::vector<bool> several_;   // nodes with links in more_
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
// A Clos network of two stages: each leaf, leaf0, .., has a link to each spine, spine0, .., and `hosts` hosts, h0, ...
[[nodiscard]] Topology leaf_spine(std::uint32_t spines, std::uint32_t leaves, std::uint32_t hosts, const Uniform& all);
// Two switches, left and right, with half of the hosts at each; all that crosses shares their trunk.
[[nodiscard]] Topology shared_bottleneck(std::uint32_t left, std::uint32_t right, const Uniform& all);

}  // namespace netsum::sim
