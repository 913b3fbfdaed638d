#include "jobs/netreduce_job.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "encoding/codec.h"
#include "jobs/own_layouts.h"
#include "jobs/own_part.h"
#include "netsum/error.h"
#include "session/check.h"
#include "session/fields.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::netreduce {

template <class Archive>
void fields(Archive& a, Member& m) {
  a.bytes(1, "address", m.address);
  a.number(2, "send_qp", m.send_qp);
  a.number(3, "send_psn", m.send_psn);
  a.number(4, "receive_qp", m.receive_qp);
  a.number(5, "memory_address", m.memory_address);
  a.number(6, "memory_key", m.memory_key);
}

}  // namespace netsum::netreduce

namespace netsum::jobs {

using session::Admission;
using session::HopKeys;
using session::JobView;
using session::JoinRequest;
using session::Placement;
using session::ProtocolRules;
using session::StartJob;
using session::SwitchEndpoint;
using session::Terms;

template <class Archive>
void fields(Archive& a, RingAsk& m) {
  a.number(1, "message_packets", m.message_packets);
  a.list(2, "members", m.members, session::most_lanes);
  a.message(3, "privacy", m.privacy);
  a.number(4, "most_messages", m.most_messages);
}
template <class Archive>
void fields(Archive& a, RingGrant& m) {
  a.number(1, "message_packets", m.message_packets);
  a.lists(2, "members", m.members, max_world_size, session::most_lanes);
  a.list(3, "public_keys", m.public_keys, seal::most_private_ranks);
  a.number(4, "first", m.first);
}

std::string netreduce_layout() {
  return encoding::Layout::of<RingAsk>() + encoding::Layout::of<RingGrant>();
}

namespace {

constexpr const char* netreduce_name = "netreduce";
constexpr std::uint32_t message_bytes = 65536;  // the most, unless asked for

// A path MTU in elements of 4 bytes.
constexpr std::uint32_t mtu_of(std::uint32_t packet_elements) {
  return packet_elements * 4;
}

std::string impossible_packet(std::uint32_t elements) {
  return "packets of " + std::to_string(elements) +
         " elements are not possible: use 64, 128, 256, 512 or 1024 (RoCE's path MTUs of 256 to 4096 bytes)";
}

// Without connections; through a tunnel.
netreduce::RingConfig ring_of(const Admission& admission, const RingGrant& grant, std::size_t lane) {
  netreduce::RingConfig ring;
  ring.incarnation = incarnation_of(admission.job_epoch, lane);
  ring.ring = static_cast<std::uint32_t>(lane);
  ring.members = static_cast<std::uint32_t>(grant.members.size());
  ring.window = netreduce::roomy_window(admission.slots, grant.message_packets);
  ring.message_packets = grant.message_packets;
  ring.mtu = mtu_of(admission.packet_elements);
  ring.tunnelled = true;
  return ring;
}

HopKeys ring_hop(const HopKeys& keys, std::size_t lane) {
  if (!keys.up) return {};
  return {keys.up.derived("netsum ring", lane), keys.down.derived("netsum ring", lane)};
}

// `ring`: ring_of(), completed. `on_wire`: at bumps in the wire.
netreduce::TunnelRing carried(const netreduce::RingConfig& ring, const StartJob& start, const RingGrant& grant,
                              std::size_t lane, std::uint32_t switch_id, const SwitchEndpoint& endpoint, bool on_wire) {
  std::vector<netreduce::Member> members;
  for (const auto& lanes : grant.members) members.push_back(lanes[lane]);
  netreduce::Places places{{}, [&](std::uint32_t other) { return endpoint(other, lane); }};
  if (!on_wire) places.rank = [&](std::uint32_t rank) { return start.endpoints[rank][lane]; };
  return netreduce::tunnel_ring(ring, members, tree_of(start.admission.placement, members.size()), switch_id, places);
}

netreduce::TunnelRing bump_ring(const StartJob& start, std::uint32_t switch_id, const SwitchEndpoint& endpoint,
                                netreduce::Order order) {
  const RingGrant grant = ring_grant(start.admission);
  netreduce::RingConfig ring = ring_of(start.admission, grant, 0);
  ring.tunnelled = false;
  ring.order = order;
  return carried(ring, start, grant, 0, switch_id, endpoint, true);
}

bool is_member(const netreduce::Member& member) {
  return member.send_qp <= wire::roce::qp_mask && member.receive_qp <= wire::roce::qp_mask &&
         member.send_psn <= wire::roce::psn_mask;
}

// All ranks have as many queue pairs as lanes, and no two connections of a lane look alike on the wire.
std::string wrong_ranks(std::size_t members, std::size_t ranks) {
  return "there are queue pairs of " + std::to_string(members) + " ranks for " + std::to_string(ranks) + " ranks";
}

constexpr char oversized[] = "the number or the first PSN of a queue pair has more than 24 bits";

// `whole`: they are all of the ring's, in a row from rank 0 on.
std::string check_members(std::span<const std::vector<netreduce::Member>> members, std::size_t lanes, bool whole) {
  for (const auto& of_rank : members) {
    if (of_rank.size() != lanes) {
      return "a rank has " + std::to_string(of_rank.size()) + " queue pairs for " + std::to_string(lanes) + " lanes";
    }
    if (!std::all_of(of_rank.begin(), of_rank.end(), is_member)) return oversized;
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::set<netreduce::Connection> connections;
    for (std::size_t rank = 0; rank + (whole ? 0 : 1) < members.size(); ++rank) {
      const netreduce::Member &own = members[rank][lane], &next = members[(rank + 1) % members.size()][lane];
      if (!connections.insert(netreduce::data_connection(own, next)).second ||
          !connections.insert(netreduce::answer_connection(own, next)).second) {
        return "a queue pair of rank " + std::to_string(rank) + " on lane " + std::to_string(lane) + " is in use already";
      }
    }
  }
  return "";
}

// Calls what(lane, connection, rank) with both directions of each rank's connection to its successor.
template <class What>
void for_each_connection(const RingGrant& grant, const What& what) {
  for (std::uint32_t rank = 0; rank < grant.members.size(); ++rank) {
    const std::vector<netreduce::Member>& own = grant.members[rank];
    const std::vector<netreduce::Member>& next = grant.members[(rank + 1) % grant.members.size()];
    for (std::size_t lane = 0; lane < own.size(); ++lane) {
      what(lane, netreduce::data_connection(own[lane], next[lane]), rank);
      what(lane, netreduce::answer_connection(own[lane], next[lane]), rank);
    }
  }
}

// Empty, or which of the job's connections looks like another one on the wire.
std::string clash(const RingGrant& grant, const std::vector<const session::OwnPart*>& others) {
  std::set<std::pair<std::size_t, netreduce::Connection>> taken;
  const auto take = [&](std::size_t lane, const netreduce::Connection& connection, std::uint32_t) {
    return taken.emplace(lane, connection).second;
  };
  for (const session::OwnPart* const other : others) for_each_connection(checked_part<RingGrant>(*other), take);
  std::string error;
  for_each_connection(grant, [&](std::size_t lane, const netreduce::Connection& connection, std::uint32_t rank) {
    if (take(lane, connection, rank) || !error.empty()) return;
    error = "a queue pair between ranks " + std::to_string(rank) + " and " +
            std::to_string((rank + 1) % grant.members.size()) + " on lane " + std::to_string(lane) + " is in use already";
  });
  return error;
}

// A rank needs its own queue pairs and its neighbours'.
constexpr std::uint32_t most_told = 3;

std::uint32_t first_told(std::uint32_t rank, std::uint32_t ranks) {
  return ranks <= most_told ? 0 : predecessor_of(rank, ranks);
}

std::vector<session::OwnPart> shares_of(const session::OwnPart& own, std::uint32_t ranks) {
  const RingGrant whole = checked_part<RingGrant>(own);
  std::vector<session::OwnPart> shares;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    RingGrant share{whole.message_packets, {}, whole.public_keys, first_told(rank, ranks)};
    for (std::uint32_t i = 0; i < std::min(most_told, ranks); ++i) {
      share.members.push_back(whole.members[(share.first + i) % ranks]);
    }
    shares.push_back(written(share));
  }
  return shares;
}

const std::vector<netreduce::Member>& queue_pairs_of(const RingGrant& grant, std::uint32_t rank, std::uint32_t ranks) {
  return grant.members[(rank + ranks - grant.first) % ranks];
}

session::Agreement agree_on_ring(const session::Gathered& gathered) {
  RingGrant grant;
  std::uint32_t most = session::most_slots;
  for (const JoinRequest* const rank : gathered.ranks) {
    RingAsk ask = checked_part<RingAsk>(rank->own);
    grant.message_packets = ask.message_packets;  // the same for all
    if (ask.most_messages != 0) most = std::min(most, std::bit_floor(ask.most_messages));
    ask.members.resize(gathered.lanes);
    grant.members.push_back(std::move(ask.members));
    if (!ask.privacy.public_key.empty()) grant.public_keys.push_back(std::move(ask.privacy.public_key));
  }
  // Unless ranks ask for a length, messages are short enough for the shortest window of them to fit into what is free.
  const std::uint32_t units =
      session::units_of_packet(gathered.packet_elements) * static_cast<std::uint32_t>(grant.members.size());
  Messages messages = messages_of(gathered.window, grant.message_packets, gathered.packet_elements);
  if (grant.message_packets == 0 && messages.packets > gathered.room / units && gathered.room >= units) {
    messages = messages_of(gathered.window, gathered.room / units, gathered.packet_elements);
  }
  grant.message_packets = messages.packets;
  session::Agreement agreement;
  agreement.slots = std::min(messages.count, most);
  agreement.packets_of_slot = messages.packets;
  agreement.reason = clash(grant, gathered.others);
  if (!agreement.reason.empty()) agreement.refusal = session::Refusal::bad_parameters;
  agreement.own = written(grant);
  return agreement;
}

// Its shape, without its members.
netreduce::RingConfig shape_of(std::uint32_t ranks, std::uint32_t slots, std::uint32_t message_packets,
                               std::uint32_t packet_elements) {
  netreduce::RingConfig ring;
  ring.members = ranks;
  ring.window = netreduce::roomy_window(std::max(1U, slots), message_packets);
  ring.message_packets = message_packets;
  ring.mtu = mtu_of(packet_elements);
  ring.tunnelled = true;
  return ring;
}

std::string check_ask(const JoinRequest& request) {
  const auto ask = encoding::parsed<RingAsk>(request.own);
  if (!ask) return ask.why();
  if (ask->members.size() != request.endpoints.size()) return "the rank does not name one queue pair per lane";
  if (std::string error = check(ask->privacy, request.world_size); !error.empty()) return error;
  if (!std::all_of(ask->members.begin(), ask->members.end(), is_member)) {
    return oversized;
  }
  const std::uint32_t packets = ask->message_packets != 0 ? ask->message_packets : longest_message(request.packet_elements);
  return netreduce::check(shape_of(request.world_size, request.slots_fixed, packets, request.packet_elements));
}

std::string check_grant(const Admission& admission, const JoinRequest& asked) {
  const auto grant = encoding::parsed<RingGrant>(admission.own);
  if (!grant) return grant.why();
  const RingAsk ask = checked_part<RingAsk>(asked.own);
  if (ask.message_packets != 0 && grant->message_packets != ask.message_packets) {
    return "the admission has messages of " + std::to_string(grant->message_packets) + " packets, and this rank asked for " +
           std::to_string(ask.message_packets);
  }
  if (ask.most_messages != 0 && admission.slots > ask.most_messages) {
    return "the admission has a window of " + std::to_string(admission.slots) + " messages, and this rank's memory holds " +
           std::to_string(ask.most_messages);
  }
  if (grant->message_packets == 0) return "the admission has messages of 0 packets";
  const std::uint32_t ranks = asked.world_size, told = std::min(most_told, ranks);
  if (grant->members.size() != told) return wrong_ranks(grant->members.size(), told);
  if (grant->first != first_told(asked.rank, ranks)) {
    return "the admission has the queue pairs of ranks from " + std::to_string(grant->first) + " on for rank " +
           std::to_string(asked.rank);
  }
  if (std::string error = check_members(grant->members, admission.lanes, told == ranks); !error.empty()) return error;
  const std::vector<netreduce::Member>& own = queue_pairs_of(*grant, asked.rank, ranks);
  if (!std::equal(own.begin(), own.end(), ask.members.begin())) {
    return "the admission has other queue pairs for rank " + std::to_string(asked.rank) + " than the rank named";
  }
  return check_public_keys(grant->public_keys, ask.privacy, asked.rank, asked.world_size);
}

}  // namespace

session::OwnPart own_part(const RingAsk& ask) {
  return written(ask);
}
session::OwnPart own_part(const RingGrant& grant) {
  return written(grant);
}
RingGrant ring_grant(const Admission& admission) {
  return checked_part<RingGrant>(admission.own);
}

ProtocolRules netreduce_rules() {
  ProtocolRules rules;
  rules.name = netreduce_name;
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
  rules.check_placement = check_tree;
  rules.cost = [](const Terms& terms) -> session::Cost {
    const std::uint32_t message_packets = checked_part<RingGrant>(terms.own).message_packets;
    // One member per rank's connection, and one per switch, any of which may be next to the aggregator.
    const auto members = terms.world_size + static_cast<std::uint32_t>(terms.placement.switches.size());
    return {session::units_of_packet(terms.packet_elements) * message_packets * terms.world_size,
            netreduce::Accelerator::memory_bytes(shape_of(members, terms.slots, message_packets, terms.packet_elements))};
  };
  ProtocolRules::Own& own = rules.own.emplace();
  own.check_request = check_ask;
  own.compare = [](const JoinRequest& first, const JoinRequest& second) -> std::optional<session::Difference> {
    const RingAsk theirs = checked_part<RingAsk>(first.own), ours = checked_part<RingAsk>(second.own);
    if (theirs.message_packets == ours.message_packets) return compare(theirs.privacy, ours.privacy);
    return session::Difference{"packets per message", theirs.message_packets, ours.message_packets};
  };
  own.agree = agree_on_ring;
  own.check_terms = [](const Terms& terms) {
    return netreduce::check(
        shape_of(terms.world_size, terms.slots, checked_part<RingGrant>(terms.own).message_packets, terms.packet_elements));
  };
  own.shares = shares_of;
  own.check_admission = check_grant;
  return rules;
}

std::uint32_t longest_message(std::uint32_t packet_elements) {
  return std::max(1U, message_bytes / std::max(1U, mtu_of(packet_elements)));
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

std::uint32_t packets_in_flight(std::uint64_t bits_per_second, Duration round_trip, std::uint32_t packet_bytes) {
  const double bytes = static_cast<double>(bits_per_second) / 8 * std::chrono::duration<double>(round_trip).count();
  return static_cast<std::uint32_t>(std::clamp(std::ceil(bytes / packet_bytes), 0.0, 1e9));
}

std::vector<seal::Neighbour> ring_neighbours(const StartJob& start, std::size_t lane, std::uint32_t switch_id,
                                             const SwitchEndpoint& endpoint) {
  std::vector<seal::Neighbour> neighbours;
  if (start.keys.empty()) return neighbours;
  const netreduce::Tree tree = tree_of(start.admission.placement, start.endpoints.size());
  for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
    if (tree.switch_of_rank[rank] != switch_id) continue;
    const HopKeys keys = ring_hop(start.keys[rank], lane);
    neighbours.push_back({start.endpoints[rank][lane], keys.down, keys.up});
  }
  const std::vector<std::uint32_t>& parents = start.admission.placement.parent_of_switch;
  for (std::uint32_t i = 0; i < parents.size(); ++i) {
    const HopKeys keys = ring_hop(start.switch_keys[i], lane);
    if (parents[i] == switch_id) neighbours.push_back({endpoint(i, lane), keys.down, keys.up});
    if (i == switch_id) neighbours.push_back({endpoint(parents[i], lane), keys.up, keys.down});
  }
  return neighbours;
}

std::vector<seal::Neighbour> ring_neighbours(const TreeInstallation& installation, std::size_t lane) {
  return ring_neighbours(installation.start, lane, installation.switch_id, endpoints_of(installation));
}

netreduce::LaneKeys ring_keys(const Admission& admission, std::size_t lane) {
  const HopKeys keys = ring_hop(admission.keys, lane);
  return {admission.security, keys.up, keys.down};
}

std::uint64_t incarnation_of(std::uint64_t job_epoch, std::size_t lane) {
  return job_epoch + lane * 0x9e3779b97f4a7c15U;
}

netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane, std::uint32_t switch_id,
                                  const SwitchEndpoint& endpoint, netreduce::Order order) {
  const RingGrant grant = ring_grant(start.admission);
  netreduce::RingConfig ring = ring_of(start.admission, grant, lane);
  ring.order = order;
  ring.selective = true;  // all ranks have netsum's endpoint
  return carried(ring, start, grant, lane, switch_id, endpoint, false);
}

netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane, netreduce::Order order) {
  return tunnel_ring(
      start, lane, netreduce::at_root, [](std::uint32_t, std::size_t) { return Endpoint{}; }, order);
}

TreeInstallation read_ring(const session::SwitchMessage& message, const ProtocolRules& rules) {
  TreeInstallation installation = read_tree(message, rules);
  const auto grant = encoding::parsed<RingGrant>(installation.start.admission.own, [&](const RingGrant& read) {
    const std::size_t ranks = installation.start.endpoints.size();
    std::string error = read.members.size() == ranks ? check_members(read.members, installation.root.size(), true)
                                                     : wrong_ranks(read.members.size(), ranks);
    if (!error.empty()) throw encoding::Nonsense{std::move(error)};
  });
  // The check of the first lane covers all of them.
  const std::string why = grant ? netreduce::check(tunnel_ring(installation, 0).ring) : grant.why();
  if (!why.empty()) throw Error(ErrorCode::refused, "invalid installation of job '" + message.job + "': " + why);
  return installation;
}

netreduce::TunnelRing tunnel_ring(const TreeInstallation& installation, std::size_t lane, netreduce::Order order) {
  return tunnel_ring(installation.start, lane, installation.switch_id, endpoints_of(installation), order);
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
  rules.own->check_request = [](const JoinRequest& request) -> std::string {
    if (request.survivors == 0) return check_ask(request);
    return "a bump in the wire sums rings of all ranks: no rank of job '" + request.job + "' may ask for survivors";
  };
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
  return bump_ring(installation.start, installation.switch_id, endpoints_of(installation), order);
}

JobView view_of(const netreduce::Accelerator& accelerator, std::uint64_t job_epoch, std::size_t lane) {
  const std::uint64_t incarnation = incarnation_of(job_epoch, lane);
  JobView view;
  if (const auto mismatch = accelerator.mismatch(incarnation)) {
    view.mismatch =
        "issued different calls as message " + std::to_string(mismatch->message) + " of ring " + std::to_string(lane);
    view.first_rank = mismatch->first_rank;
    view.second_rank = mismatch->second_rank;
  }
  if (const auto stall = accelerator.stall(incarnation)) view.missing = stall->missing;
  return view;
}

netreduce::RoceHostConfig host_config(const Admission& admission, const RingGrant& grant, std::uint32_t rank,
                                      std::size_t lane) {
  const auto ranks = static_cast<std::uint32_t>(admission.rank_epochs.size());
  netreduce::RoceHostConfig config;
  config.worker.incarnation = incarnation_of(admission.job_epoch, lane);
  config.worker.ring = static_cast<std::uint32_t>(lane);
  config.worker.rank = rank;
  config.worker.world_size = ranks;
  config.worker.window = admission.slots;
  config.buffers = 2 * netreduce::roomy_window(admission.slots, grant.message_packets);
  config.worker.message_packets = grant.message_packets;
  config.worker.mtu = mtu_of(admission.packet_elements);
  config.selective = true;
  config.self = queue_pairs_of(grant, rank, ranks)[lane];
  config.successor = queue_pairs_of(grant, successor_of(rank, ranks), ranks)[lane];
  config.predecessor = queue_pairs_of(grant, predecessor_of(rank, ranks), ranks)[lane];
  return config;
}

}  // namespace netsum::jobs
