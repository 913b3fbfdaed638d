// Protocol buffers <-> the structures of session/.
#pragma once

#include <algorithm>
#include <optional>

#include "base/endpoint.h"
#include "control/netsum.pb.h"
#include "session/netreduce_job.h"
#include "session/registry.h"

namespace netsum::control {

namespace proto = v1;

inline void to_proto(const Endpoint& endpoint, proto::Endpoint& out) {
  out.set_address(endpoint.address.data(), endpoint.address.size());
  out.set_port(endpoint.port);
  out.set_scope(endpoint.scope);
}

// Nothing if the message is not an endpoint.
inline std::optional<Endpoint> from_proto(const proto::Endpoint& in) {
  Endpoint endpoint;
  if (in.address().size() != endpoint.address.size() || in.port() > 0xffff) return std::nullopt;
  std::copy(in.address().begin(), in.address().end(), endpoint.address.begin());
  endpoint.port = static_cast<std::uint16_t>(in.port());
  endpoint.scope = in.scope();
  return endpoint;
}

inline void to_proto(const netreduce::Member& member, proto::Member& out) {
  out.set_address(member.address.data(), member.address.size());
  out.set_send_qp(member.send_qp);
  out.set_send_psn(member.send_psn);
  out.set_receive_qp(member.receive_qp);
  out.set_memory_address(member.memory_address);
  out.set_memory_key(member.memory_key);
}

// Nothing if the message is no member.
inline std::optional<netreduce::Member> from_proto(const proto::Member& in) {
  netreduce::Member member{{}, in.send_qp(), in.send_psn(), in.receive_qp(), in.memory_address(), in.memory_key()};
  constexpr std::uint32_t bits24 = 0xffffff;
  if (in.address().size() != member.address.size() || member.send_qp > bits24 || member.send_psn > bits24 ||
      member.receive_qp > bits24) {
    return std::nullopt;
  }
  std::copy(in.address().begin(), in.address().end(), member.address.begin());
  return member;
}

inline void to_proto(const RankSet& ranks, google::protobuf::RepeatedField<std::uint32_t>& out) {
  ranks.for_each([&](std::uint32_t rank) { out.Add(rank); });
}

inline RankSet from_proto(const google::protobuf::RepeatedField<std::uint32_t>& in) {
  RankSet ranks;
  for (const std::uint32_t rank : in) {
    if (rank < max_world_size) ranks.insert(rank);
  }
  return ranks;
}

inline void to_proto(const stream::Progress& progress, proto::Progress& out) {
  out.set_next(progress.next);
  out.set_kept(progress.kept);
  out.mutable_finished()->Add(progress.finished.begin(), progress.finished.end());
}

inline stream::Progress from_proto(const proto::Progress& in) {
  return {in.next(), in.kept(), {in.finished().begin(), in.finished().end()}};
}

inline void to_proto(const stream::Resumption& resumption, proto::Resumption& out) {
  out.set_first(resumption.first);
  for (const auto& [operation, rank] : resumption.replays) {
    auto& replay = *out.add_replays();
    replay.set_operation(operation);
    replay.set_rank(rank);
  }
}

inline stream::Resumption from_proto(const proto::Resumption& in) {
  stream::Resumption resumption{in.first(), {}};
  for (const auto& replay : in.replays()) resumption.replays[replay.operation()] = replay.rank();
  return resumption;
}

// Nothing if a data endpoint is none; whether the rest makes sense is the registry's to say.
inline std::optional<session::JoinRequest> from_proto(const proto::JoinRequest& in) {
  session::JoinRequest request{in.protocol_version(),
                               in.protocol(),
                               in.job(),
                               in.rank(),
                               in.world_size(),
                               in.packet_elements(),
                               in.slots_fixed(),
                               in.slots_measured(),
                               {},
                               in.pool_slots(),
                               in.switch_address(),
                               in.recovers(),
                               {},
                               {},
                               in.former_epoch(),
                               in.message_packets(),
                               {},
                               0,
                               {},
                               false};
  request.local_ticket = in.local_ticket();
  request.why_not_local = in.why_not_local();
  request.needs_local = in.needs_local();
  request.listens = in.listens();
  if (in.has_progress()) request.progress = from_proto(in.progress());
  request.aggregators.assign(in.aggregators().begin(), in.aggregators().end());
  for (const auto& endpoint : in.endpoints()) {
    const auto parsed = from_proto(endpoint);
    if (!parsed) return std::nullopt;
    request.endpoints.push_back(*parsed);
  }
  for (const auto& member : in.members()) {
    const auto parsed = from_proto(member);
    if (!parsed) return std::nullopt;
    request.members.push_back(*parsed);
  }
  return request;
}

inline void to_proto(const session::Placement& placement, proto::Placement& out) {
  for (const std::string& address : placement.switches) out.add_switches(address);
  for (const std::uint32_t parent : placement.parent_of_switch) out.add_parent_of_switch(parent);
  for (const std::uint32_t at : placement.switch_of_rank) out.add_switch_of_rank(at);
  out.set_pool_slots(placement.pool_slots);
  out.set_indexing(placement.indexing);
  out.set_part(placement.part);
  out.set_parts(placement.parts);
  out.set_scaling(placement.scaling);
}

inline session::Placement from_proto(const proto::Placement& in) {
  return {{in.switches().begin(), in.switches().end()},
          {in.parent_of_switch().begin(), in.parent_of_switch().end()},
          {in.switch_of_rank().begin(), in.switch_of_rank().end()},
          in.pool_slots(),
          in.indexing(),
          in.part(),
          in.parts(),
          in.scaling()};
}

inline void to_proto(const session::Installation& installation, proto::Installation& out) {
  out.set_job(installation.job);
  out.set_job_epoch(installation.job_epoch);
  out.set_folded_epochs(installation.folded_epochs);
  out.set_packet_elements(installation.packet_elements);
  out.set_window(installation.window);
  out.set_level(installation.level);
  out.set_next_level(installation.next_level);
  out.set_saturating(installation.saturating);
  for (const auto& lane : installation.lanes) {
    auto& to = *out.add_lanes();
    to_proto(lane.parent, *to.mutable_parent());
    for (const auto& child : lane.children) {
      auto& c = *to.add_children();
      to_proto(child.endpoint, *c.mutable_endpoint());
      c.set_is_switch(child.is_switch);
      c.set_rank_epoch(child.rank_epoch);
      for (const std::uint32_t rank : child.ranks) c.add_ranks(rank);
    }
  }
}

// Nothing if an endpoint is none; whether the rest makes sense is the switch's to say.
inline std::optional<session::Installation> from_proto(const proto::Installation& in) {
  session::Installation installation{in.job(),    in.job_epoch(), in.folded_epochs(), in.packet_elements(),
                                     in.window(), in.level(),     in.next_level(),    in.saturating(),
                                     {}};
  for (const auto& lane : in.lanes()) {
    const auto parent = from_proto(lane.parent());
    if (!parent) return std::nullopt;
    auto& to = installation.lanes.emplace_back();
    to.parent = *parent;
    for (const auto& child : lane.children()) {
      const auto endpoint = from_proto(child.endpoint());
      if (!endpoint) return std::nullopt;
      to.children.push_back(
          {*endpoint, child.is_switch(), child.rank_epoch(), {child.ranks().begin(), child.ranks().end()}});
    }
  }
  return installation;
}

template <class Endpoints>
void to_proto(const std::vector<Endpoint>& endpoints, Endpoints& out) {
  for (const Endpoint& endpoint : endpoints) to_proto(endpoint, *out.Add());
}
template <class Endpoints>
bool from_proto(const Endpoints& in, std::vector<Endpoint>& out) {
  for (const auto& endpoint : in) {
    const auto parsed = from_proto(endpoint);
    if (!parsed) return false;
    out.push_back(*parsed);
  }
  return true;
}

inline void to_proto(const session::RingInstallation& installation, proto::RingInstallation& out) {
  const session::Admission& admission = installation.start.admission;
  out.set_job(installation.start.job);
  out.set_job_epoch(admission.job_epoch);
  out.set_packet_elements(admission.packet_elements);
  out.set_slots(admission.slots);
  out.set_message_packets(admission.message_packets);
  for (const auto& rank : admission.members) {
    proto::Members& lanes = *out.add_members();
    for (const auto& member : rank) to_proto(member, *lanes.add_lanes());
  }
  for (const auto& rank : installation.start.endpoints) to_proto(rank, *out.add_endpoints()->mutable_lanes());
  to_proto(admission.placement, *out.mutable_placement());
  for (const auto& a_switch : installation.switches) to_proto(a_switch, *out.add_switches()->mutable_lanes());
  to_proto(installation.root, *out.mutable_root());
  out.set_a_switch(installation.a_switch);
  out.set_again(installation.again);
}

// Nothing if an endpoint or a queue pair is none; whether the rest makes sense is the switch's to say.
inline std::optional<session::RingInstallation> from_proto(const proto::RingInstallation& in) {
  session::RingInstallation installation;
  installation.start.job = in.job();
  session::Admission& admission = installation.start.admission;
  admission.job_epoch = in.job_epoch();
  admission.packet_elements = in.packet_elements();
  admission.slots = in.slots();
  admission.message_packets = in.message_packets();
  for (const auto& rank : in.members()) {
    auto& lanes = admission.members.emplace_back();
    for (const auto& member : rank.lanes()) {
      const auto parsed = from_proto(member);
      if (!parsed) return std::nullopt;
      lanes.push_back(*parsed);
    }
  }
  for (const auto& rank : in.endpoints()) {
    if (!from_proto(rank.lanes(), installation.start.endpoints.emplace_back())) return std::nullopt;
  }
  admission.placement = from_proto(in.placement());
  for (const auto& a_switch : in.switches()) {
    if (!from_proto(a_switch.lanes(), installation.switches.emplace_back())) return std::nullopt;
  }
  if (!from_proto(in.root(), installation.root)) return std::nullopt;
  installation.a_switch = in.a_switch();
  installation.again = in.again();
  return installation;
}

inline constexpr char token_key[] = "netsum-token";

}  // namespace netsum::control
