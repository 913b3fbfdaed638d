#include "session/netreduce_job.h"

#include <algorithm>
#include <bit>

#include "netsum/error.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::session {
namespace {

constexpr std::uint32_t message_bytes = 65536;  // the most, unless asked for

// A path MTU in elements of 4 bytes.
constexpr std::uint32_t mtu_of(std::uint32_t packet_elements) {
  return packet_elements * 4;
}

std::string impossible_packet(std::uint32_t elements) {
  return "packets of " + std::to_string(elements) +
         " elements are not possible: 64, 128, 256, 512 or 1024, which are RoCE's path MTUs of 256 to 4096 bytes";
}

// Without connections; through a tunnel.
netreduce::RingConfig ring_of(const Admission& admission, std::size_t lane) {
  netreduce::RingConfig ring;
  ring.incarnation = incarnation_of(admission.job_epoch, lane);
  ring.ring = static_cast<std::uint32_t>(lane);
  ring.members = static_cast<std::uint32_t>(admission.members.size());
  ring.window = admission.slots;
  ring.message_packets = admission.message_packets;
  ring.mtu = mtu_of(admission.packet_elements);
  ring.tunnelled = true;
  return ring;
}

HopKeys ring_hop(const HopKeys& keys, std::size_t lane) {
  if (!keys.up) return {};
  return {keys.up.derived("netsum ring", lane), keys.down.derived("netsum ring", lane)};
}

// `ring`: ring_of(), completed. `on_wire`: at bumps in the wire.
netreduce::TunnelRing carried(const netreduce::RingConfig& ring, const StartJob& start, std::size_t lane,
                              std::uint32_t a_switch, const SwitchEndpoint& endpoint, bool on_wire) {
  std::vector<netreduce::Member> members;
  for (const auto& lanes : start.admission.members) members.push_back(lanes[lane]);
  netreduce::Places places{{}, [&](std::uint32_t other) { return endpoint(other, lane); }};
  if (!on_wire) places.rank = [&](std::uint32_t rank) { return start.endpoints[rank][lane]; };
  return netreduce::tunnel_ring(ring, members, tree_of(start.admission.placement, members.size()), a_switch, places);
}

SwitchEndpoint endpoints_of(const TreeInstallation& installation) {
  return [&](std::uint32_t a_switch, std::size_t lane) {
    return a_switch == netreduce::at_root ? installation.root[lane] : installation.switches[a_switch][lane];
  };
}

netreduce::TunnelRing bump_ring(const StartJob& start, std::uint32_t a_switch, const SwitchEndpoint& endpoint,
                                netreduce::Order order) {
  netreduce::RingConfig ring = ring_of(start.admission, 0);
  ring.tunnelled = false;
  ring.order = order;
  return carried(ring, start, 0, a_switch, endpoint, true);
}

}  // namespace

ProtocolRules netreduce_rules() {
  ProtocolRules rules;
  rules.name = "netreduce";
  rules.version = wire::netreduce::version;
  rules.max_world_size = wire::netreduce::max_workers;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (elements <= wire::roce::max_tunnel_mtu / 4 && wire::roce::is_tunnel_mtu(mtu_of(elements))) return "";
    return impossible_packet(elements) + ", or a multiple of 1024 up to " + std::to_string(wire::roce::max_tunnel_mtu / 4);
  };
  rules.switches = true;
  rules.switches_needed = true;
  rules.sealed = true;
  rules.watched = true;
  rules.check_placement = [](const Placement& placement) {
    return netreduce::check(tree_of(placement, placement.switch_of_rank.size()));
  };
  rules.check_request = [](const JoinRequest& request) -> std::string {
    if (request.members.size() != request.endpoints.size()) return "the rank does not name its queue pairs";
    netreduce::RingConfig ring;
    ring.members = request.world_size;
    ring.window = std::max(1U, request.slots_fixed);
    ring.message_packets = request.message_packets != 0 ? request.message_packets : longest_message(request.packet_elements);
    ring.mtu = mtu_of(request.packet_elements);
    ring.tunnelled = true;
    return netreduce::check(ring);
  };
  rules.messages = messages_of;
  rules.units = [](const JoinRequest& request) {
    return units_of_packet(request) * request.message_packets * request.world_size;
  };
  rules.memory_bytes = [](const JoinRequest& request, const Placement& placement) -> std::uint64_t {
    netreduce::RingConfig ring;
    // One member per rank's connection, and one per switch, any of which may be next to the aggregator.
    ring.members = request.world_size + static_cast<std::uint32_t>(placement.switches.size());
    ring.window = request.slots_fixed;
    ring.message_packets = request.message_packets;
    ring.mtu = mtu_of(request.packet_elements);
    return netreduce::Accelerator::memory_bytes(ring);
  };
  return rules;
}

std::uint32_t longest_message(std::uint32_t packet_elements) {
  return std::max(1U, message_bytes / mtu_of(packet_elements));
}

Messages messages_of(std::uint32_t packets, std::uint32_t asked, std::uint32_t packet_elements) {
  // A message's result is taken, and its place in the window free, when all of it is there: a quarter of the window.
  constexpr std::uint32_t parts = 4;
  Messages messages;
  messages.packets = asked;
  if (asked == 0) {
    const std::uint32_t longest = longest_message(packet_elements);
    messages.packets = packets == 0 ? longest : std::clamp((packets + parts - 1) / parts, 1U, longest);
  }
  messages.count = std::bit_ceil(std::max(parts, (packets + messages.packets - 1) / messages.packets));
  return messages;
}

std::vector<seal::Neighbour> ring_neighbours(const StartJob& start, std::size_t lane, std::uint32_t a_switch,
                                             const SwitchEndpoint& endpoint) {
  std::vector<seal::Neighbour> neighbours;
  if (start.keys.empty()) return neighbours;
  const netreduce::Tree tree = tree_of(start.admission.placement, start.endpoints.size());
  for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
    if (tree.switch_of_rank[rank] != a_switch) continue;
    const HopKeys keys = ring_hop(start.keys[rank], lane);
    neighbours.push_back({start.endpoints[rank][lane], keys.down, keys.up});
  }
  const std::vector<std::uint32_t>& parents = start.admission.placement.parent_of_switch;
  for (std::uint32_t i = 0; i < parents.size(); ++i) {
    const HopKeys keys = ring_hop(start.switch_keys[i], lane);
    if (parents[i] == a_switch) neighbours.push_back({endpoint(i, lane), keys.down, keys.up});
    if (i == a_switch) neighbours.push_back({endpoint(parents[i], lane), keys.up, keys.down});
  }
  return neighbours;
}

std::vector<seal::Neighbour> ring_neighbours(const TreeInstallation& installation, std::size_t lane) {
  return ring_neighbours(installation.start, lane, installation.a_switch, endpoints_of(installation));
}

netreduce::LaneKeys ring_keys(const Admission& admission, std::size_t lane) {
  const HopKeys keys = ring_hop(admission.keys, lane);
  return {admission.security, keys.up, keys.down};
}

StartJob for_switch(const StartJob& start, std::uint32_t a_switch) {
  StartJob told = start;
  const Placement& placement = start.admission.placement;
  told.admission.keys = {};
  for (std::size_t rank = 0; rank < told.keys.size(); ++rank) {
    if (placement.switch_of_rank[rank] != a_switch) told.keys[rank] = {};
  }
  for (std::size_t other = 0; other < told.switch_keys.size(); ++other) {
    if (other != a_switch && placement.parent_of_switch[other] != a_switch) told.switch_keys[other] = {};
  }
  return told;
}

std::uint64_t incarnation_of(std::uint64_t job_epoch, std::size_t lane) {
  return job_epoch + lane * 0x9e3779b97f4a7c15U;
}

netreduce::Tree tree_of(const Placement& placement, std::size_t ranks) {
  static_assert(netreduce::at_root == Placement::at_server);
  netreduce::Tree tree{placement.parent_of_switch, placement.switch_of_rank};
  tree.switch_of_rank.resize(ranks, netreduce::at_root);
  return tree;
}

netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane, std::uint32_t a_switch,
                                  const SwitchEndpoint& endpoint, netreduce::Order order) {
  netreduce::RingConfig ring = ring_of(start.admission, lane);
  ring.order = order;
  ring.selective = true;  // all ranks have netsum's endpoint
  return carried(ring, start, lane, a_switch, endpoint, false);
}

netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane, netreduce::Order order) {
  return tunnel_ring(
      start, lane, netreduce::at_root, [](std::uint32_t, std::size_t) { return Endpoint{}; }, order);
}

void refuse_again(const TreeInstallation& installation) {
  if (!installation.again) return;
  throw Error(ErrorCode::refused, "the switch was restarted or unreachable, and has lost the job's sums");
}

netreduce::TunnelRing tunnel_ring(const TreeInstallation& installation, std::size_t lane, netreduce::Order order) {
  return tunnel_ring(installation.start, lane, installation.a_switch, endpoints_of(installation), order);
}

std::uint64_t memory_bytes(const TreeInstallation& installation) {
  std::uint64_t bytes = 0;
  for (std::size_t lane = 0; lane < installation.root.size(); ++lane) {
    bytes += netreduce::Accelerator::memory_bytes(tunnel_ring(installation, lane).ring) +
             ring_neighbours(installation, lane).size() * seal::link_bytes(installation.start.admission.security);
  }
  return bytes;
}

ProtocolRules bump_rules(bool racks) {
  ProtocolRules rules = netreduce_rules();
  rules.switches = rules.switches_needed = racks;
  rules.sealed = false;  // a device's packets are as they are
  rules.check_packet = [](std::uint32_t elements) {
    const bool possible = elements <= wire::roce::max_mtu / 4 && wire::roce::is_path_mtu(mtu_of(elements));
    return possible ? "" : impossible_packet(elements);
  };
  return rules;
}

netreduce::TunnelRing bump_ring(const StartJob& start, const SwitchEndpoint& endpoint, netreduce::Order order) {
  return bump_ring(start, netreduce::at_root, endpoint, order);
}

netreduce::TunnelRing bump_ring(const TreeInstallation& installation, netreduce::Order order) {
  return bump_ring(installation.start, installation.a_switch, endpoints_of(installation), order);
}

JobView view_of(const netreduce::Accelerator& accelerator, std::uint64_t job_epoch, std::size_t lane) {
  const std::uint64_t incarnation = incarnation_of(job_epoch, lane);
  JobView view;
  if (const auto mismatch = accelerator.mismatch(incarnation)) {
    view.mismatch = "ranks " + std::to_string(mismatch->first_rank) + " and " + std::to_string(mismatch->second_rank) +
                    " issued different calls as message " + std::to_string(mismatch->message) + " of ring " +
                    std::to_string(lane);
  }
  if (const auto stall = accelerator.stall(incarnation)) view.missing = stall->missing;
  return view;
}

netreduce::RoceHostConfig host_config(const Admission& admission, std::uint32_t rank, std::size_t lane) {
  const std::size_t ranks = admission.members.size();
  netreduce::RoceHostConfig config;
  config.worker.incarnation = incarnation_of(admission.job_epoch, lane);
  config.worker.ring = static_cast<std::uint32_t>(lane);
  config.worker.rank = rank;
  config.worker.world_size = static_cast<std::uint32_t>(ranks);
  config.worker.window = admission.slots;
  config.worker.message_packets = admission.message_packets;
  config.worker.mtu = mtu_of(admission.packet_elements);
  config.selective = true;
  config.self = admission.members[rank][lane];
  config.successor = admission.members[successor_of(rank, config.worker.world_size)][lane];
  config.predecessor = admission.members[predecessor_of(rank, config.worker.world_size)][lane];
  return config;
}

}  // namespace netsum::session
