#include "control/border.h"

#include <algorithm>
#include <array>
#include <span>

#include "netsum/error.h"
#include "session/atp_job.h"
#include "session/check.h"

namespace netsum::control {
namespace {

// Never leaves this file: parsed() turns it into Parsed::wrong().
struct Nonsense {
  std::string what;
};

void demand(bool holds, const char* otherwise) {
  if (!holds) throw Nonsense{otherwise};
}
void demand_none(std::string error) {
  if (!error.empty()) throw Nonsense{std::move(error)};
}

template <class Make>
auto parsed(const Make& make) -> Parsed<decltype(make())> {
  try {
    return make();
  } catch (Nonsense& nonsense) {
    return Parsed<decltype(make())>::wrong(std::move(nonsense.what));
  }
}

std::array<std::uint8_t, 16> address_of(const std::string& bytes) {
  std::array<std::uint8_t, 16> address{};
  demand(bytes.size() == address.size(), "an address that has not 16 bytes");
  std::copy(bytes.begin(), bytes.end(), address.begin());
  return address;
}

Endpoint endpoint_of(const proto::Endpoint& in) {
  demand(in.port() <= 0xffff, "a port that is none");
  return {address_of(in.address()), static_cast<std::uint16_t>(in.port()), in.scope()};
}

netreduce::Member member_of(const proto::Member& in) {
  return {address_of(in.address()), in.send_qp(), in.send_psn(), in.receive_qp(), in.memory_address(), in.memory_key()};
}

// A list of at most `most` elements; checked before anything is allocated.
template <class List, class Make>
auto list_of(const List& in, std::size_t most, const char* too_many, const Make& make) {
  demand(static_cast<std::size_t>(in.size()) <= most, too_many);
  std::vector<decltype(make(*in.begin()))> out;
  out.reserve(static_cast<std::size_t>(in.size()));
  for (const auto& each : in) out.push_back(make(each));
  return out;
}
constexpr auto as_it_is = [](const auto& value) { return value; };

template <class List>
auto lanes_of(const List& in) {
  return list_of(in, session::most_lanes, "more lanes than an aggregator has", endpoint_of);
}
std::vector<netreduce::Member> members_of(const google::protobuf::RepeatedPtrField<proto::Member>& in) {
  return list_of(in, session::most_lanes, "more lanes of queue pairs than an aggregator has", member_of);
}
std::vector<std::uint64_t> cookies_of(const google::protobuf::RepeatedField<std::uint64_t>& in) {
  return list_of(in, session::most_lanes, "more cookies than an aggregator has lanes", as_it_is);
}
template <class Value>
std::vector<Value> of_ranks(const google::protobuf::RepeatedField<Value>& in) {
  return list_of(in, max_world_size, "more ranks than a job has", as_it_is);
}

RankSet ranks_of(const google::protobuf::RepeatedField<std::uint32_t>& in) {
  RankSet ranks;
  for (const std::uint32_t rank : of_ranks(in)) {
    demand(rank < max_world_size, "a rank that no job has");
    ranks.insert(rank);
  }
  return ranks;
}

stream::Progress progress_of(const proto::Progress& in) {
  return {in.next(), in.kept(),
          list_of(in.finished(), stream::OperationLog::most_results, "more results than a rank keeps", as_it_is)};
}

stream::Resumption resumption_of(const proto::Resumption& in) {
  stream::Resumption resumption{in.first(), {}};
  for (const auto& replay : in.replays()) {
    demand(resumption.replays.emplace(replay.operation(), replay.rank()).second, "an operation that is sent again by two");
  }
  return resumption;
}

session::Placement placement_of(const proto::Placement& in) {
  constexpr const char* too_many = "more switches than a job has";
  return {list_of(in.switches(), session::most_switches, too_many, as_it_is),
          list_of(in.parent_of_switch(), session::most_switches, too_many, as_it_is),
          of_ranks(in.switch_of_rank()),
          in.pool_slots(),
          in.indexing(),
          in.part(),
          in.parts(),
          in.scaling()};
}

PacketSecurity security_of(std::uint32_t number) {
  demand(number <= static_cast<std::uint32_t>(PacketSecurity::encrypt), "a protection of packets that is none");
  return static_cast<PacketSecurity>(number);
}

seal::PacketKey key_of(const std::string& bytes) {
  if (bytes.empty()) return {};
  demand(bytes.size() == seal::PacketKey::size, "a key of another length");
  return seal::PacketKey(std::as_bytes(std::span<const char, seal::PacketKey::size>(bytes)));
}
std::string bytes_of(const seal::PacketKey& key) {
  if (!key) return {};
  return {reinterpret_cast<const char*>(key.bytes().data()), key.bytes().size()};
}

session::RankKeys keys_of(const proto::Keys& in) {
  return {key_of(in.up()), key_of(in.down())};
}
void write_keys(const session::HopKeys& keys, proto::Keys& out) {
  out.set_up(bytes_of(keys.up));
  out.set_down(bytes_of(keys.down));
}
template <class List>
void write_keys(const std::vector<session::RankKeys>& keys, List& out) {
  for (const session::RankKeys& each : keys) write_keys(each, *out.Add());
}

session::Installation::Child child_of(const proto::Installation::Child& in) {
  return {endpoint_of(in.endpoint()), in.is_switch(), in.rank_epoch(),
          of_ranks(in.ranks()),       in.cookie(),    keys_of(in.keys())};
}
session::Installation::Lane lane_of(const proto::Installation::Lane& in) {
  return {endpoint_of(in.parent()), list_of(in.children(), max_world_size, "more children than a job has ranks", child_of),
          keys_of(in.keys()), in.has_own() ? endpoint_of(in.own()) : Endpoint{}};
}

template <class Lanes>
void write_lanes(const std::vector<Endpoint>& lanes, Lanes& out) {
  for (const Endpoint& lane : lanes) write(lane, *out.Add());
}
template <class Lanes>
void write_members(const std::vector<netreduce::Member>& lanes, Lanes& out) {
  for (const netreduce::Member& member : lanes) {
    proto::Member& to = *out.Add();
    to.set_address(member.address.data(), member.address.size());
    to.set_send_qp(member.send_qp);
    to.set_send_psn(member.send_psn);
    to.set_receive_qp(member.receive_qp);
    to.set_memory_address(member.memory_address);
    to.set_memory_key(member.memory_key);
  }
}
template <class Value>
void write_all(const std::vector<Value>& values, google::protobuf::RepeatedField<Value>& out) {
  out.Add(values.begin(), values.end());
}
void write_ranks(const RankSet& ranks, google::protobuf::RepeatedField<std::uint32_t>& out) {
  ranks.for_each([&](std::uint32_t rank) { out.Add(rank); });
}

void write_placement(const session::Placement& placement, proto::Placement& out) {
  for (const std::string& address : placement.switches) out.add_switches(address);
  write_all(placement.parent_of_switch, *out.mutable_parent_of_switch());
  write_all(placement.switch_of_rank, *out.mutable_switch_of_rank());
  out.set_pool_slots(placement.pool_slots);
  out.set_indexing(placement.indexing);
  out.set_part(placement.part);
  out.set_parts(placement.parts);
  out.set_scaling(placement.scaling);
}

}  // namespace

// ---- requests

Parsed<std::string> parse(const proto::HelloRequest& in) {
  return parsed([&] {
    demand(session::is_name(in.job()), "the job's name is none");
    return in.job();
  });
}

Parsed<Join> parse(const proto::JoinRequest& in) {
  return parsed([&] {
    Join join;
    join.wait = std::chrono::milliseconds(in.wait_ms());
    session::JoinRequest& request = join.request;
    request.protocol_version = in.protocol_version();
    request.protocol = in.protocol();
    request.job = in.job();
    request.rank = in.rank();
    request.world_size = in.world_size();
    request.packet_elements = in.packet_elements();
    request.slots_fixed = in.slots_fixed();
    request.slots_measured = in.slots_measured();
    request.endpoints = lanes_of(in.endpoints());
    request.pool_slots = in.pool_slots();
    request.switch_address = in.switch_address();
    // This daemon connects to it, through a library that takes files and other services for addresses too.
    demand(request.switch_address.empty() || session::is_address(request.switch_address),
           "the address of the rank's switch is not HOST:PORT");
    request.recovers = in.recovers();
    if (in.has_progress()) request.progress = progress_of(in.progress());
    request.aggregators = list_of(in.aggregators(), session::most_aggregators, "more aggregators than a job has", as_it_is);
    request.former_epoch = in.former_epoch();
    request.message_packets = in.message_packets();
    request.members = members_of(in.members());
    request.local_ticket = in.local_ticket();
    request.why_not_local = in.why_not_local();
    request.needs_local = in.needs_local();
    request.listens = in.listens();
    request.packet_elements_measured = in.packet_elements_measured();
    request.switch_receive_bytes = in.switch_receive_bytes();
    request.cookies = cookies_of(in.cookies());
    request.switch_cookies = cookies_of(in.switch_cookies());
    request.generation = in.generation();
    request.security = security_of(in.security());
    request.near = in.near();
    request.process = {in.host(), in.process()};
    demand_none(check(request));
    return join;
  });
}

Parsed<Life> parse(const proto::Membership& in) {
  return parsed([&] {
    demand(in.job_epoch() != 0 && in.rank_epoch() != 0, "an epoch that was never issued");
    demand(in.rank() < max_world_size, "a rank that no job has");
    const auto cause = static_cast<session::FailureCause>(std::min<std::uint32_t>(in.cause(), UINT8_MAX));
    Life life{in.job_epoch(), in.rank(), in.rank_epoch(), {cause, session::one_line(in.reason())}};
    if (cause > session::last_cause) life.farewell.cause = session::FailureCause::other;  // of a later netsum
    if (cause != session::FailureCause::none && life.farewell.reason.empty()) {
      life.farewell.reason = "rank " + std::to_string(life.rank) + " left the job, and gave no reason";
    }
    return life;
  });
}

Parsed<session::NamedJob> parse(const proto::NamedJob& in) {
  return parsed([&] {
    demand_none(session::check_job_name(in.job()));
    demand(session::is_name(in.tenant()), "the tenant's name is none");
    session::NamedJob named{in.job()};
    if (!in.tenant().empty()) named.tenant = in.tenant();
    return named;
  });
}

Parsed<bool> parse(const proto::DrainRequest& in) {
  return in.undo();
}

Parsed<std::uint64_t> parse_uninstall(const proto::Membership& in) {
  return parsed([&] {
    demand(in.job_epoch() != 0, "an epoch that was never issued");
    return std::uint64_t{in.job_epoch()};
  });
}

Parsed<session::Installation> parse(const proto::Installation& in) {
  return parsed([&] {
    session::Installation installation;
    installation.job = in.job();
    installation.job_epoch = in.job_epoch();
    installation.folded_epochs = in.folded_epochs();
    installation.packet_elements = in.packet_elements();
    installation.window = in.window();
    installation.level = in.level();
    installation.next_level = in.next_level();
    installation.saturating = in.saturating();
    installation.part = {in.first_slot(), in.own_slots()};
    installation.security = security_of(in.security());
    installation.again = in.again();
    installation.lanes = list_of(in.lanes(), session::most_lanes, "more lanes than a switch has", lane_of);
    demand_none(check(installation));
    return installation;
  });
}

Parsed<session::TreeInstallation> parse(const proto::TreeInstallation& in) {
  return parsed([&] {
    session::TreeInstallation installation;
    session::StartJob& start = installation.start;
    session::Admission& admission = start.admission;
    const auto lanes = [](const auto& of) { return lanes_of(of.lanes()); };
    start.job = in.job();
    start.protocol = in.protocol();
    admission.job_epoch = in.job_epoch();
    admission.rank_epochs = of_ranks(in.rank_epochs());
    admission.packet_elements = in.packet_elements();
    admission.slots = in.slots();
    admission.message_packets = in.message_packets();
    admission.members = list_of(in.members(), max_world_size, "queue pairs of more ranks than a job has",
                                [](const proto::Members& of_rank) { return members_of(of_rank.lanes()); });
    start.endpoints = list_of(in.endpoints(), max_world_size, "addresses of more ranks than a job has", lanes);
    start.switch_cookies = list_of(in.cookies(), max_world_size, "cookies of more ranks than a job has",
                                   [](const auto& of_rank) { return cookies_of(of_rank.lanes()); });
    admission.placement = placement_of(in.placement());
    installation.switches =
        list_of(in.switches(), session::most_switches, "addresses of more switches than a job has", lanes);
    installation.root = lanes_of(in.root());
    installation.a_switch = in.a_switch();
    installation.again = in.again();
    admission.security = security_of(in.security());
    admission.results = key_of(in.result_key());
    start.keys = list_of(in.rank_keys(), max_world_size, "keys of more ranks than a job has", keys_of);
    start.switch_keys = list_of(in.switch_keys(), session::most_switches, "keys of more switches than a job has", keys_of);
    demand_none(check(installation));
    return installation;
  });
}

// ---- replies

Parsed<Hello> parse(const proto::HelloReply& in) {
  return parsed([&] {
    Hello hello;
    hello.lanes = lanes_of(in.lanes());
    hello.instance = in.instance();
    hello.pool_slots = in.pool_slots();
    hello.pool_elements = in.pool_elements();
    hello.local_socket = in.local_socket();
    hello.groups = lanes_of(in.groups());
    hello.same_host = in.same_host();
    hello.receive_bytes = in.receive_bytes();
    hello.in_wire = in.in_wire();
    hello.security = security_of(in.security());
    if (in.has_switchml_chip()) {
      const auto& lengths = in.switchml_chip().packet_elements();
      demand(lengths.size() <= 2, "a chip for packets of no such length");
      hello.chip = session::ChipProfile{in.switchml_chip().max_members(), {lengths.begin(), lengths.end()}};
      demand_none(session::check(*hello.chip));
    }
    for (const Endpoint& lane : hello.lanes) {
      demand(session::is_host(lane) || session::is_anywhere(lane), "a data socket at an address that is no host's");
    }
    demand(hello.groups.empty() || hello.groups.size() == hello.lanes.size(), "groups that are not one a lane");
    demand(std::all_of(hello.groups.begin(), hello.groups.end(), session::is_group), "a group that is none");
    if (hello.pool_slots != 0) demand_none(session::atp_rules().check_packet(hello.pool_elements));
    demand(session::is_name(hello.local_socket), "a socket's name that is none");
    return hello;
  });
}

Parsed<session::Admission> parse(const proto::JoinReply& in, const session::JoinRequest& asked,
                                 const session::ProtocolRules& rules) {
  return parsed([&] {
    session::Admission admission;
    admission.job_epoch = in.job_epoch();
    admission.rank_epoch = in.rank_epoch();
    admission.rank_epochs = of_ranks(in.rank_epochs());
    admission.packet_elements = in.packet_elements();
    admission.slots = in.slots();
    admission.placement = placement_of(in.placement());
    admission.resumption = resumption_of(in.resumption());
    admission.message_packets = in.message_packets();
    admission.members = list_of(in.members(), max_world_size, "queue pairs of more ranks than a job has",
                                [](const proto::Members& of_rank) { return members_of(of_rank.lanes()); });
    admission.local = in.local();
    admission.why_not_local = in.why_not_local();
    admission.security = security_of(in.security());
    admission.results = key_of(in.result_key());
    admission.keys = {key_of(in.up_key()), key_of(in.down_key())};
    demand_none(check(admission, asked, rules));
    return admission;
  });
}

Parsed<session::HeartbeatReply> parse(const proto::HeartbeatReply& in) {
  return parsed([&] {
    using State = session::HeartbeatReply::State;
    session::HeartbeatReply reply;
    switch (in.state()) {
      case proto::HeartbeatReply::UNKNOWN:
        break;
      case proto::HeartbeatReply::RUNNING:
        reply.state = State::running;
        break;
      case proto::HeartbeatReply::FAILED:
        reply.state = State::failed;
        break;
      default:
        throw Nonsense{"a state that is none"};
    }
    reply.reason = in.reason();
    if (in.has_lost()) reply.lost = in.lost();
    reply.left = ranks_of(in.left());
    reply.mismatch = in.mismatch();
    reply.ended_by_operator = in.ended_by_operator();
    reply.warning = in.warning();
    reply.missing = ranks_of(in.missing());
    demand_none(check(reply));
    return reply;
  });
}

Parsed<session::JobView> parse(const proto::RingView& in) {
  return parsed([&] {
    session::JobView view{in.mismatch(), ranks_of(in.missing())};
    demand_none(check(view));
    return view;
  });
}

Parsed<telemetry::Report> parse(const proto::StatusReply& in) {
  return parsed([&] {
    try {
      return telemetry::from_json(in.report_json());
    } catch (const Error& error) {
      throw Nonsense{error.what()};
    }
  });
}

Parsed<Endpoint> parse(const proto::Endpoint& in) {
  return parsed([&] { return endpoint_of(in); });
}

// ---- and back

void write(const Endpoint& endpoint, proto::Endpoint& out) {
  out.set_address(endpoint.address.data(), endpoint.address.size());
  out.set_port(endpoint.port);
  out.set_scope(endpoint.scope);
}

void write(const std::string& job, proto::HelloRequest& out) {
  out.set_job(job);
}

void write(const Join& join, proto::JoinRequest& out) {
  const session::JoinRequest& request = join.request;
  out.set_protocol_version(request.protocol_version);
  out.set_protocol(request.protocol);
  out.set_job(request.job);
  out.set_rank(request.rank);
  out.set_world_size(request.world_size);
  out.set_packet_elements(request.packet_elements);
  out.set_slots_fixed(request.slots_fixed);
  out.set_slots_measured(request.slots_measured);
  write_lanes(request.endpoints, *out.mutable_endpoints());
  out.set_wait_ms(static_cast<std::uint32_t>(std::clamp<std::int64_t>(join.wait.count(), 0, UINT32_MAX)));
  out.set_switch_address(request.switch_address);
  out.set_pool_slots(request.pool_slots);
  out.set_recovers(request.recovers);
  if (request.progress.next != stream::Progress::anywhere) {
    proto::Progress& progress = *out.mutable_progress();
    progress.set_next(request.progress.next);
    progress.set_kept(request.progress.kept);
    write_all(request.progress.finished, *progress.mutable_finished());
  }
  for (const std::string& address : request.aggregators) out.add_aggregators(address);
  out.set_former_epoch(request.former_epoch);
  out.set_message_packets(request.message_packets);
  write_members(request.members, *out.mutable_members());
  out.set_local_ticket(request.local_ticket);
  out.set_why_not_local(request.why_not_local);
  out.set_needs_local(request.needs_local);
  out.set_listens(request.listens);
  out.set_packet_elements_measured(request.packet_elements_measured);
  out.set_switch_receive_bytes(request.switch_receive_bytes);
  write_all(request.cookies, *out.mutable_cookies());
  write_all(request.switch_cookies, *out.mutable_switch_cookies());
  out.set_generation(request.generation);
  out.set_security(static_cast<std::uint32_t>(request.security));
  out.set_near(request.near);
  out.set_host(request.process.host);
  out.set_process(request.process.id);
}

void write(const Life& life, proto::Membership& out) {
  out.set_job_epoch(life.job_epoch);
  out.set_rank(life.rank);
  out.set_rank_epoch(life.rank_epoch);
  out.set_cause(static_cast<std::uint32_t>(life.farewell.cause));
  out.set_reason(session::one_line(life.farewell.reason));
}

void write(const session::NamedJob& named, proto::NamedJob& out) {
  out.set_job(named.job);
  out.set_tenant(named.tenant.value_or(""));
}

void write_uninstall(std::uint64_t job_epoch, proto::Membership& out) {
  out.set_job_epoch(job_epoch);
}

void write(const session::Installation& installation, proto::Installation& out) {
  out.set_job(installation.job);
  out.set_job_epoch(installation.job_epoch);
  out.set_folded_epochs(installation.folded_epochs);
  out.set_packet_elements(installation.packet_elements);
  out.set_window(installation.window);
  out.set_level(installation.level);
  out.set_next_level(installation.next_level);
  out.set_saturating(installation.saturating);
  out.set_first_slot(installation.part.first);
  out.set_own_slots(installation.part.count);
  out.set_security(static_cast<std::uint32_t>(installation.security));
  out.set_again(installation.again);
  for (const auto& lane : installation.lanes) {
    auto& to = *out.add_lanes();
    write(lane.parent, *to.mutable_parent());
    write(lane.own, *to.mutable_own());
    if (lane.keys.up) write_keys(lane.keys, *to.mutable_keys());
    for (const auto& child : lane.children) {
      auto& c = *to.add_children();
      write(child.endpoint, *c.mutable_endpoint());
      c.set_is_switch(child.is_switch);
      c.set_rank_epoch(child.rank_epoch);
      write_all(child.ranks, *c.mutable_ranks());
      c.set_cookie(child.cookie);
      if (child.keys.up) write_keys(child.keys, *c.mutable_keys());
    }
  }
}

void write(const session::TreeInstallation& installation, proto::TreeInstallation& out) {
  const session::Admission& admission = installation.start.admission;
  out.set_job(installation.start.job);
  out.set_protocol(installation.start.protocol);
  out.set_job_epoch(admission.job_epoch);
  write_all(admission.rank_epochs, *out.mutable_rank_epochs());
  out.set_packet_elements(admission.packet_elements);
  out.set_slots(admission.slots);
  out.set_message_packets(admission.message_packets);
  for (const auto& rank : admission.members) write_members(rank, *out.add_members()->mutable_lanes());
  for (const auto& rank : installation.start.endpoints) write_lanes(rank, *out.add_endpoints()->mutable_lanes());
  for (const auto& rank : installation.start.switch_cookies) write_all(rank, *out.add_cookies()->mutable_lanes());
  write_placement(admission.placement, *out.mutable_placement());
  for (const auto& a_switch : installation.switches) write_lanes(a_switch, *out.add_switches()->mutable_lanes());
  write_lanes(installation.root, *out.mutable_root());
  out.set_a_switch(installation.a_switch);
  out.set_again(installation.again);
  out.set_security(static_cast<std::uint32_t>(admission.security));
  out.set_result_key(bytes_of(admission.results));
  write_keys(installation.start.keys, *out.mutable_rank_keys());
  write_keys(installation.start.switch_keys, *out.mutable_switch_keys());
}

void write(const Hello& hello, proto::HelloReply& out) {
  write_lanes(hello.lanes, *out.mutable_lanes());
  out.set_instance(hello.instance);
  out.set_pool_slots(hello.pool_slots);
  out.set_pool_elements(hello.pool_elements);
  out.set_local_socket(hello.local_socket);
  write_lanes(hello.groups, *out.mutable_groups());
  out.set_same_host(hello.same_host);
  out.set_receive_bytes(hello.receive_bytes);
  out.set_in_wire(hello.in_wire);
  out.set_security(static_cast<std::uint32_t>(hello.security));
  if (hello.chip) {
    out.mutable_switchml_chip()->set_max_members(hello.chip->max_members);
    write_all(hello.chip->packet_elements, *out.mutable_switchml_chip()->mutable_packet_elements());
  }
}

void write(const session::Admission& admission, proto::JoinReply& out) {
  out.set_job_epoch(admission.job_epoch);
  out.set_rank_epoch(admission.rank_epoch);
  write_all(admission.rank_epochs, *out.mutable_rank_epochs());
  out.set_packet_elements(admission.packet_elements);
  out.set_slots(admission.slots);
  write_placement(admission.placement, *out.mutable_placement());
  out.mutable_resumption()->set_first(admission.resumption.first);
  for (const auto& [operation, rank] : admission.resumption.replays) {
    auto& replay = *out.mutable_resumption()->add_replays();
    replay.set_operation(operation);
    replay.set_rank(rank);
  }
  out.set_message_packets(admission.message_packets);
  for (const auto& rank : admission.members) write_members(rank, *out.add_members()->mutable_lanes());
  out.set_local(admission.local);
  out.set_why_not_local(admission.why_not_local);
  out.set_security(static_cast<std::uint32_t>(admission.security));
  out.set_result_key(bytes_of(admission.results));
  out.set_up_key(bytes_of(admission.keys.up));
  out.set_down_key(bytes_of(admission.keys.down));
}

void write(const session::HeartbeatReply& reply, proto::HeartbeatReply& out) {
  using State = session::HeartbeatReply::State;
  out.set_state(reply.state == State::running  ? proto::HeartbeatReply::RUNNING
                : reply.state == State::failed ? proto::HeartbeatReply::FAILED
                                               : proto::HeartbeatReply::UNKNOWN);
  out.set_reason(session::one_line(reply.reason));
  if (reply.lost) out.set_lost(*reply.lost);
  write_ranks(reply.left, *out.mutable_left());
  out.set_mismatch(reply.mismatch);
  out.set_ended_by_operator(reply.ended_by_operator);
  out.set_warning(session::one_line(reply.warning));
  write_ranks(reply.missing, *out.mutable_missing());
}

void write(const session::JobView& view, proto::RingView& out) {
  out.set_mismatch(session::one_line(view.mismatch));
  write_ranks(view.missing, *out.mutable_missing());
}

void write(const telemetry::Report& report, proto::StatusReply& out) {
  out.set_report_json(telemetry::to_json(report));
}

}  // namespace netsum::control
