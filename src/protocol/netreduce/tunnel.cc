#include "protocol/netreduce/tunnel.h"

#include <algorithm>
#include <utility>

#include "wire/ecn.h"
#include "wire/roce.h"

namespace netsum::netreduce {

bool Tunnel::add_ring(Accelerator::RingState&& state, const TunnelRing& ring) {
  std::unordered_map<Connection, Route, ConnectionHash> added;
  for (const TunnelRoute& route : ring.routes) {
    if (routes_.contains(route.connection)) return false;
    if (!added.emplace(route.connection, Route{route.from, route.to, ring.ring.incarnation}).second) return false;
  }
  if (!accelerator_.add_ring(std::move(state))) return false;
  routes_.merge(added);
  last_ = nullptr;
  return true;
}

Accelerator::RingState Tunnel::remove_ring(std::uint64_t incarnation) {
  reroute(incarnation, {});
  return accelerator_.remove_ring(incarnation);
}

void Tunnel::reroute(std::uint64_t incarnation, const std::vector<TunnelRoute>& routes) {
  std::erase_if(routes_, [&](const auto& item) { return item.second.incarnation == incarnation; });
  for (const TunnelRoute& route : routes) routes_[route.connection] = {route.from, route.to, incarnation};
  last_ = nullptr;
}

void Tunnel::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  for (const RxView& view : packets) {
    wire::roce::Packet packet;
    if (const auto error = wire::roce::parse(view.bytes, packet, wire::roce::max_tunnel_mtu);
        error != wire::ParseError::none) {
      ++counters_.malformed[static_cast<std::size_t>(error)];
      continue;
    }
    const Connection connection{packet.ip.source, packet.ip.destination, packet.bth.destination_qp};
    if (last_ == nullptr || last_connection_ != connection) {
      const auto found = routes_.find(connection);
      if (found == routes_.end()) {
        ++counters_.unknown;
        continue;
      }
      last_ = &found->second;
      last_connection_ = connection;
    }
    if (view.source != last_->from) {
      ++counters_.dropped_source;
      continue;
    }
    if (view.congested) packet.ip.traffic_class = wire::marked(packet.ip.traffic_class);
    if (accelerator_.on_packet(packet, view.bytes, 0, last_->to, now, sink) == Accelerator::Verdict::taken) {
      ++counters_.taken;
      continue;
    }
    ++counters_.passed;
    const std::span<std::byte> out = sink.datagram(last_->to, view.bytes.size());
    std::copy(view.bytes.begin(), view.bytes.end(), out.begin());
    if (view.congested) wire::mark_congestion(out);
  }
}

}  // namespace netsum::netreduce
