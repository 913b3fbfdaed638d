#include "sim/ns3/ns3_medium.h"

#include <stdexcept>

namespace netsum::sim {
namespace {

ns3_wires::Port port_of(const PortPlan& plan) {
  if (plan.loss_burst != 1 || !plan.outages.empty())
    throw std::invalid_argument("links of ns-3's have no bursts of losses and no outages here");
  ns3_wires::Port port{plan.bits_per_second, plan.delay.count(), plan.buffer_bytes, plan.mark_bytes, plan.loss};
  if (plan.red) {
    if (plan.red->marks) throw std::invalid_argument("RED of ns-3's links drops: leave `mark` out");
    port.red_least_bytes = plan.red->least_bytes;
    port.red_most_bytes = plan.red->most_bytes;
    port.red_most_chance = plan.red->most_chance;
    port.red_weight = plan.red->weight;
  }
  return port;
}

std::vector<ns3_wires::Node> nodes_of(const Topology& topology) {
  std::vector<ns3_wires::Node> nodes;
  for (NodeId node = 0; node < topology.size(); ++node) {
    if (topology[node].shared_buffer_bytes != UINT64_MAX)
      throw std::invalid_argument("ports of ns-3's nodes share no buffer");
    nodes.push_back({topology[node].above, port_of(topology[node].up), port_of(topology[node].down)});
  }
  return nodes;
}

}  // namespace

Ns3Medium::Ns3Medium(const Topology& topology, std::uint64_t seed, Time origin)
    : origin_(origin), wires_(nodes_of(topology), seed), counts_(2 * topology.size()) {}

std::optional<std::size_t> Ns3Medium::add_tcp(const TcpPlan& plan) {
  return wires_.add_tcp({plan.from, plan.to, plan.congestion_control, plan.start.count(), plan.stop.count()});
}

bool Ns3Medium::run(Medium::User& user, Time end) {
  user_ = &user;
  return wires_.run(*this, since(end));
}

const PortCounts& Ns3Medium::counts(NodeId node, Fabric::Way way) const {
  const ns3_wires::Counts& found = wires_.counts(node, way == Fabric::Way::up);
  PortCounts& counts = counts_[2 * node + (way == Fabric::Way::up ? 0 : 1)];
  counts = {found.packets, found.bytes, found.dropped, found.lost, found.marked, found.longest_queue};
  return counts;
}

}  // namespace netsum::sim
