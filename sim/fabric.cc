#include "sim/fabric.h"

#include <algorithm>
#include <functional>

#include "sim/random.h"

namespace netsum::sim {

Fabric::Fabric(const Topology& topology, std::uint64_t seed, Time origin)
    : topology_(topology), origin_(origin), ports_(2 * topology.size()), shared_(topology.size()) {
  for (NodeId node = 0; node < topology.size(); ++node) {
    for (const Way way : {Way::up, Way::down}) {
      Port& port = ports_[2 * std::size_t{node} + (way == Way::down ? 1 : 0)];
      const PortPlan& plan = way == Way::up ? topology[node].up : topology[node].down;
      port.clock = PortClock(plan.bits_per_second);
      port.losses = PortLosses(derive(derive(seed, node), static_cast<std::uint64_t>(way)));
      port.sender = way == Way::up ? node : topology[node].above;
    }
  }
}

std::uint64_t Fabric::queued_bytes(NodeId node, Way way, Time now) const {
  return port(node, way).clock.left(picoseconds(now));
}

bool Fabric::fits(Port& port, const PortPlan& plan, std::uint64_t now, std::uint64_t queued, std::uint64_t bytes) {
  if (queued + bytes > plan.buffer_bytes) return false;
  const std::uint64_t most = topology_[port.sender].shared_buffer_bytes;
  if (most == UINT64_MAX) return true;
  Shared& shared = shared_[port.sender];
  while (!shared.leaving.empty() && shared.leaving.top().at <= now) {
    shared.bytes -= shared.leaving.top().bytes;
    shared.leaving.pop();
  }
  return shared.bytes + bytes <= most;
}

std::optional<Fabric::Hop> Fabric::forward(Time now, NodeId at, NodeId to, std::uint64_t frame_bytes) {
  const NodeId next = topology_.next(at, to);
  const bool up = next == topology_[at].above;
  const NodeId of = up ? at : next;
  Port& port = ports_[2 * std::size_t{of} + (up ? 0 : 1)];
  const PortPlan& plan = up ? topology_[of].up : topology_[of].down;
  port.losses.offer();
  Hop hop{next, now + plan.delay, false};
  if (!port.clock.unlimited()) {
    const std::uint64_t time = picoseconds(now);
    const std::uint64_t queued = port.clock.left(time);
    if (!fits(port, plan, time, queued, frame_bytes)) {
      ++port.counts.dropped;
      return std::nullopt;
    }
    if (queued > plan.mark_bytes) {
      hop.marked = true;
      ++port.counts.marked;
    }
    port.counts.longest_queue = std::max(port.counts.longest_queue, queued + frame_bytes);
    port.clock.take(time, frame_bytes);
    if (topology_[port.sender].shared_buffer_bytes != UINT64_MAX) {
      shared_[port.sender].bytes += frame_bytes;
      shared_[port.sender].leaving.push({port.clock.free(), frame_bytes});
    }
    hop.at = port.clock.done() + plan.delay;
  }
  ++port.counts.packets;
  port.counts.bytes += frame_bytes;
  if (port.losses.loses(plan, now - origin_)) {
    ++port.counts.lost;
    return std::nullopt;
  }
  return hop;
}

}  // namespace netsum::sim
