#include "sim/fabric.h"

#include <algorithm>
#include <functional>

#include "sim/random.h"

namespace netsum::sim {
namespace {

// A port that sends `rate` bits a second takes picoseconds_per_byte / rate for each byte.
constexpr std::uint64_t picoseconds_per_byte = 8'000'000'000'000;

std::uint64_t picoseconds(Time time) {
  return static_cast<std::uint64_t>(time.time_since_epoch().count()) * 1000;
}

}  // namespace

Fabric::Fabric(const Topology& topology, std::uint64_t seed, Time origin)
    : topology_(topology), origin_(origin), ports_(2 * topology.size()), shared_(topology.size()) {
  for (NodeId node = 0; node < topology.size(); ++node) {
    for (const Way way : {Way::up, Way::down}) {
      Port& port = ports_[2 * std::size_t{node} + (way == Way::down ? 1 : 0)];
      const PortPlan& plan = way == Way::up ? topology[node].up : topology[node].down;
      port.rate = plan.bits_per_second;
      port.seed = derive(derive(seed, node), static_cast<std::uint64_t>(way));
      port.sender = way == Way::up ? node : topology[node].above;
    }
  }
}

std::uint64_t Fabric::queued_bytes(NodeId node, Way way, Time now) const {
  return queued_bytes(port(node, way), picoseconds(now));
}

std::uint64_t Fabric::queued_bytes(const Port& port, std::uint64_t now) {
  if (port.free < now) return 0;
  // In 128 bits: a second of a queue at 1 Tbit/s takes 80 bits.
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((Wide{port.free - now} * port.rate + port.rest) / picoseconds_per_byte);
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

// Gilbert's model: a burst begins behind a packet that is not lost, and ends behind one that is, by chances that give
// plan.loss and plan.loss_burst.
bool Fabric::loses(Port& port, const PortPlan& plan, Time now) const {
  const bool out = std::any_of(plan.outages.begin(), plan.outages.end(), [&](const PortPlan::Outage& outage) {
    return now - origin_ >= outage.from && now - origin_ < outage.to;
  });
  if (plan.loss <= 0) return out;
  const double drawn = static_cast<double>(mix(port.seed ^ mix(port.offered)) >> 11) * 0x1p-53;
  const double ends = 1 / plan.loss_burst;
  const double chance = plan.loss_burst == 1 ? plan.loss : port.losing ? 1 - ends : ends * plan.loss / (1 - plan.loss);
  port.losing = drawn < chance;
  return out || port.losing;
}

std::optional<Fabric::Hop> Fabric::forward(Time now, NodeId at, NodeId to, std::uint64_t frame_bytes) {
  const NodeId next = topology_.next(at, to);
  const bool up = next == topology_[at].above;
  const NodeId of = up ? at : next;
  Port& port = ports_[2 * std::size_t{of} + (up ? 0 : 1)];
  const PortPlan& plan = up ? topology_[of].up : topology_[of].down;
  ++port.offered;
  Hop hop{next, now + plan.delay, false};
  if (port.rate != 0) {
    const std::uint64_t time = picoseconds(now);
    const std::uint64_t queued = queued_bytes(port, time);
    if (!fits(port, plan, time, queued, frame_bytes)) {
      ++port.counts.dropped;
      return std::nullopt;
    }
    if (queued > plan.mark_bytes) {
      hop.marked = true;
      ++port.counts.marked;
    }
    port.counts.longest_queue = std::max(port.counts.longest_queue, queued + frame_bytes);
    if (port.free < time) {
      port.free = time;
      port.rest = 0;
    }
    // What a division leaves counts for the next frame, so that the rate is exact over many.
    port.rest += frame_bytes * picoseconds_per_byte;
    port.free += port.rest / port.rate;
    port.rest %= port.rate;
    if (topology_[port.sender].shared_buffer_bytes != UINT64_MAX) {
      shared_[port.sender].bytes += frame_bytes;
      shared_[port.sender].leaving.push({port.free, frame_bytes});
    }
    const std::uint64_t end = port.free + (port.rest == 0 ? 0 : 1);
    hop.at = Time(Duration(static_cast<std::int64_t>((end + 999) / 1000))) + plan.delay;
  }
  ++port.counts.packets;
  port.counts.bytes += frame_bytes;
  if (loses(port, plan, now)) {
    ++port.counts.lost;
    return std::nullopt;
  }
  return hop;
}

}  // namespace netsum::sim
