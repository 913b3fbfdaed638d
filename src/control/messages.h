// The control plane's messages and their fields. A message is a structure; `fields(archive, message)` names its fields once,
// for all that walk over them: the writer and the reader (codec.h), the fingerprint of the layout (fingerprint.h), and the
// tests that spoil messages. A field has a number, for ever: numbers are never given a second meaning.
//
// Limits are those of one message by itself. What else a value must fulfil is checked behind the reader (border.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/endpoint.h"
#include "control/digest.h"
#include "netsum/types.h"
#include "session/check.h"
#include "session/chip_profile.h"
#include "session/job_view.h"
#include "session/netreduce_job.h"
#include "session/protocol_rules.h"
#include "session/registry.h"
#include "stream/operation_log.h"

namespace netsum::control {

// ---- before a caller has proved its tokens; docs/control-plane.md

struct Greeting {
  std::string version;      // of netsum, in words
  std::string fingerprint;  // of its layouts
  std::string nonce;
};
struct Challenge {
  std::string version, fingerprint, nonce;
  bool wants_token = false;         // a tenant's
  bool wants_daemon_token = false;  // for some requests
};
struct Proofs {
  std::string token, daemon_token;  // as proof_of() writes them; empty: none
};

// ---- requests and their answers

enum class ErrorKind : std::uint8_t { invalid, refused, overloaded, busy, late, unauthenticated, internal };
inline constexpr auto last_error_kind = ErrorKind::internal;
// An answer in place of what was asked for.
struct Failure {
  ErrorKind kind = ErrorKind::internal;
  std::string words;
};

// A rank in a life of its job.
struct Life {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, rank_epoch = 0;
  session::Farewell farewell{};  // to leave
};

struct HelloRequest {
  std::string job;  // about to be joined; empty: none
};
struct Hello {
  std::vector<Endpoint> lanes;                      // the aggregator's data sockets, one per thread
  std::uint64_t instance = 0;                       // random, new at every start of the aggregator
  std::uint32_t pool_slots = 0, pool_elements = 0;  // of each lane, for ATP; 0: not a switch
  std::string local_socket;                         // for ranks on its host; empty: none
  std::vector<Endpoint> groups;                     // of the job, one per lane: results by IP multicast; empty: none
  bool same_host = false;                           // the aggregator sees this process at an address of its own host
  std::uint64_t receive_bytes = 0;  // of each lane's receive buffer, including the kernel's overhead per packet; 0: unknown
  bool in_wire = false;             // a bump in the wire: its lanes are for other bumps
  PacketSecurity security = PacketSecurity::none;  // of jobs' packets, if a rank asks for no more
  std::optional<session::ChipProfile> chip;        // SwitchML's data plane; none: a software switch
};
struct Join {
  session::JoinRequest request;
  std::chrono::milliseconds wait{};  // for the other ranks
};
struct Beat {
  Life life;
};
struct StatusRequest {};
struct StatusReply {
  std::string report_json;
};
struct Drain {
  bool undo = false;
};
struct FlightRecord {
  std::string json;  // telemetry/flight_file.h
};
struct InstallReply {
  std::uint64_t instance = 0;  // as in Hello
};
struct RingView {
  session::JobView view;
  std::uint64_t instance = 0;
};
struct Uninstall {
  std::uint64_t job_epoch = 0;
};
struct Done {};

inline constexpr std::size_t longest_report = 16 << 20;

// ---- fields

template <class Archive>
void fields(Archive& a, Endpoint& m) {
  a.bytes(1, "address", m.address);
  a.number(2, "port", m.port);
  a.number(3, "scope", m.scope);
}
template <class Archive>
void fields(Archive& a, netreduce::Member& m) {
  a.bytes(1, "address", m.address);
  a.number(2, "send_qp", m.send_qp);
  a.number(3, "send_psn", m.send_psn);
  a.number(4, "receive_qp", m.receive_qp);
  a.number(5, "memory_address", m.memory_address);
  a.number(6, "memory_key", m.memory_key);
}
template <class Archive>
void fields(Archive& a, session::HopKeys& m) {
  a.key(1, "up", m.up);
  a.key(2, "down", m.down);
}
template <class Archive>
void fields(Archive& a, stream::Progress& m) {
  a.number(1, "next", m.next);
  a.number(2, "kept", m.kept);
  a.list(3, "finished", m.finished, stream::OperationLog::most_results);
}
template <class Archive>
void fields(Archive& a, std::pair<std::uint64_t, std::uint32_t>& m) {  // of Resumption::replays
  a.number(1, "operation", m.first);
  a.number(2, "rank", m.second);
}
template <class Archive>
void fields(Archive& a, stream::Resumption& m) {
  a.number(1, "first", m.first);
  a.map(2, "replays", m.replays, std::size_t{max_world_size} * stream::OperationLog::most_results);
}
template <class Archive>
void fields(Archive& a, session::Placement& m) {
  a.list(1, "switches", m.switches, session::most_switches);
  a.list(2, "parent_of_switch", m.parent_of_switch, session::most_switches);
  a.list(3, "switch_of_rank", m.switch_of_rank, max_world_size);
  a.number(4, "pool_slots", m.pool_slots);
  a.number(5, "indexing", m.indexing);
  a.number(6, "part", m.part);
  a.number(7, "parts", m.parts);
  a.number(8, "scaling", m.scaling);
}

template <class Archive>
void fields(Archive& a, Greeting& m) {
  a.text(1, "version", m.version, session::longest_name);
  a.text(2, "fingerprint", m.fingerprint, session::longest_name);
  a.text(3, "nonce", m.nonce, nonce_bytes);
}
template <class Archive>
void fields(Archive& a, Challenge& m) {
  a.text(1, "version", m.version, session::longest_name);
  a.text(2, "fingerprint", m.fingerprint, session::longest_name);
  a.text(3, "nonce", m.nonce, nonce_bytes);
  a.flag(4, "wants_token", m.wants_token);
  a.flag(5, "wants_daemon_token", m.wants_daemon_token);
}
template <class Archive>
void fields(Archive& a, Proofs& m) {
  a.text(1, "token", m.token, session::longest_name);
  a.text(2, "daemon_token", m.daemon_token, session::longest_name);
}
template <class Archive>
void fields(Archive& a, Failure& m) {
  a.choice(1, "kind", m.kind, last_error_kind);
  a.text(2, "words", m.words, session::longest_text);
}

template <class Archive>
void fields(Archive& a, HelloRequest& m) {
  a.text(1, "job", m.job, session::longest_name);
}
template <class Archive>
void fields(Archive& a, session::ChipProfile& m) {
  a.number(1, "max_members", m.max_members);
  a.list(2, "packet_elements", m.packet_elements, 2);
}
template <class Archive>
void fields(Archive& a, Hello& m) {
  a.list(1, "lanes", m.lanes, session::most_lanes);
  a.number(2, "instance", m.instance);
  a.number(3, "pool_slots", m.pool_slots);
  a.number(4, "pool_elements", m.pool_elements);
  a.text(5, "local_socket", m.local_socket, session::longest_name);
  a.list(6, "groups", m.groups, session::most_lanes);
  a.flag(7, "same_host", m.same_host);
  a.number(8, "receive_bytes", m.receive_bytes);
  a.choice(9, "security", m.security, PacketSecurity::encrypt);
  a.flag(10, "in_wire", m.in_wire);
  a.maybe(11, "chip", m.chip);
}

template <class Archive>
void fields(Archive& a, Join& m) {
  session::JoinRequest& r = m.request;
  a.number(1, "protocol_version", r.protocol_version);
  a.text(2, "protocol", r.protocol, session::longest_name);
  a.text(3, "job", r.job, session::longest_name);
  a.number(4, "rank", r.rank);
  a.number(5, "world_size", r.world_size);
  a.number(6, "packet_elements", r.packet_elements);
  a.number(7, "slots_fixed", r.slots_fixed);
  a.number(8, "slots_measured", r.slots_measured);
  a.list(9, "endpoints", r.endpoints, session::most_lanes);
  a.duration(10, "wait_ms", m.wait);
  a.text(11, "switch_address", r.switch_address, session::longest_name);
  a.number(12, "pool_slots", r.pool_slots);
  a.flag(13, "recovers", r.recovers);
  a.message(14, "progress", r.progress);
  a.list(15, "aggregators", r.aggregators, session::most_aggregators);
  a.number(16, "former_epoch", r.former_epoch);
  a.number(17, "message_packets", r.message_packets);
  a.list(18, "members", r.members, session::most_lanes);
  a.number(19, "local_ticket", r.local_ticket);
  a.text(20, "why_not_local", r.why_not_local, session::longest_text);
  a.flag(21, "needs_local", r.needs_local);
  a.flag(22, "listens", r.listens);
  a.flag(23, "packet_elements_measured", r.packet_elements_measured);
  a.number(24, "switch_receive_bytes", r.switch_receive_bytes);
  a.list(25, "cookies", r.cookies, session::most_lanes);
  a.list(26, "switch_cookies", r.switch_cookies, session::most_lanes);
  a.number(27, "generation", r.generation);
  a.choice(28, "security", r.security, PacketSecurity::encrypt);
  a.flag(29, "near", r.near);
  a.text(30, "host", r.process.host, session::longest_name);
  a.number(31, "process", r.process.id);
}
template <class Archive>
void fields(Archive& a, session::Admission& m) {
  a.number(1, "job_epoch", m.job_epoch);
  a.number(2, "rank_epoch", m.rank_epoch);
  a.list(3, "rank_epochs", m.rank_epochs, max_world_size);
  a.number(4, "packet_elements", m.packet_elements);
  a.number(5, "slots", m.slots);
  a.message(6, "placement", m.placement);
  a.message(7, "resumption", m.resumption);
  a.number(8, "message_packets", m.message_packets);
  a.lists(9, "members", m.members, max_world_size, session::most_lanes);
  a.flag(10, "local", m.local);
  a.text(11, "why_not_local", m.why_not_local, session::longest_text);
  a.choice(12, "security", m.security, PacketSecurity::encrypt);
  a.key(13, "results", m.results);
  a.message(14, "keys", m.keys);
}

template <class Archive>
void fields(Archive& a, Beat& m) {
  a.number(1, "job_epoch", m.life.job_epoch);
  a.number(2, "rank", m.life.rank);
  a.number(3, "rank_epoch", m.life.rank_epoch);
}
template <class Archive>
void fields(Archive& a, Life& m) {  // to leave
  a.number(1, "job_epoch", m.job_epoch);
  a.number(2, "rank", m.rank);
  a.number(3, "rank_epoch", m.rank_epoch);
  a.choice(4, "cause", m.farewell.cause, session::last_cause);
  a.text(5, "reason", m.farewell.reason, session::longest_text);
}
template <class Archive>
void fields(Archive& a, session::HeartbeatReply& m) {
  a.choice(1, "state", m.state, session::HeartbeatReply::State::unknown);
  a.text(2, "reason", m.reason, session::longest_text);
  a.maybe(3, "lost", m.lost);
  a.ranks(4, "left", m.left);
  a.flag(5, "mismatch", m.mismatch);
  a.ranks(6, "missing", m.missing);
  a.flag(7, "ended_by_operator", m.ended_by_operator);
  a.text(8, "warning", m.warning, session::longest_text);
}
// Of operators: to end it, or to explain it.
template <class Archive>
void fields(Archive& a, session::NamedJob& m) {
  a.text(1, "job", m.job, session::longest_name);
  std::string tenant = m.tenant.value_or("");
  a.text(2, "tenant", tenant, session::longest_name);
  if (!tenant.empty()) m.tenant = std::move(tenant);
}
template <class Archive>
void fields(Archive& a, Drain& m) {
  a.flag(1, "undo", m.undo);
}
template <class Archive>
void fields(Archive& a, FlightRecord& m) {
  a.text(1, "json", m.json, longest_report);
}
template <class Archive>
void fields(Archive&, StatusRequest&) {}
template <class Archive>
void fields(Archive& a, StatusReply& m) {
  a.text(1, "report_json", m.report_json, longest_report);
}

template <class Archive>
void fields(Archive& a, session::Installation::Child& m) {
  a.message(1, "endpoint", m.endpoint);
  a.flag(2, "is_switch", m.is_switch);
  a.number(3, "rank_epoch", m.rank_epoch);
  a.list(4, "ranks", m.ranks, max_world_size);
  a.number(5, "cookie", m.cookie);
  a.message(6, "keys", m.keys);
}
template <class Archive>
void fields(Archive& a, session::Installation::Lane& m) {
  a.message(1, "parent", m.parent);
  a.list(2, "children", m.children, max_world_size);
  a.message(3, "keys", m.keys);
  a.message(4, "own", m.own);
}
template <class Archive>
void fields(Archive& a, session::Installation& m) {
  a.number(1, "job_epoch", m.job_epoch);
  a.number(2, "folded_epochs", m.folded_epochs);
  a.number(3, "packet_elements", m.packet_elements);
  a.number(4, "level", m.level);
  a.number(5, "next_level", m.next_level);
  a.flag(6, "saturating", m.saturating);
  a.list(7, "lanes", m.lanes, session::most_lanes);
  a.text(8, "job", m.job, session::longest_name);
  a.number(9, "window", m.window);
  a.number(10, "first_slot", m.part.first);
  a.number(11, "own_slots", m.part.count);
  a.choice(12, "security", m.security, PacketSecurity::encrypt);
  a.flag(13, "again", m.again);
}
template <class Archive>
void fields(Archive& a, InstallReply& m) {
  a.number(1, "instance", m.instance);
}
// Also of SwitchML's jobs in trees.
template <class Archive>
void fields(Archive& a, session::TreeInstallation& m) {
  session::StartJob& s = m.start;
  session::Admission& d = s.admission;
  a.text(1, "job", s.job, session::longest_name);
  a.number(2, "job_epoch", d.job_epoch);
  a.number(3, "packet_elements", d.packet_elements);
  a.number(4, "slots", d.slots);
  a.number(5, "message_packets", d.message_packets);
  a.lists(6, "members", d.members, max_world_size, session::most_lanes);
  a.lists(7, "endpoints", s.endpoints, max_world_size, session::most_lanes);
  a.message(8, "placement", d.placement);
  a.lists(9, "switches", m.switches, session::most_switches, session::most_lanes);
  a.list(10, "root", m.root, session::most_lanes);
  a.number(11, "a_switch", m.a_switch);
  a.flag(12, "again", m.again);
  a.lists(13, "cookies", s.switch_cookies, max_world_size, session::most_lanes);  // for the switch that a rank is at
  a.text(14, "protocol", s.protocol, session::longest_name);
  a.list(15, "rank_epochs", d.rank_epochs, max_world_size);
  a.choice(16, "security", d.security, PacketSecurity::encrypt);
  a.key(17, "results", d.results);
  a.list(18, "rank_keys", s.keys, max_world_size);
  a.list(19, "switch_keys", s.switch_keys, session::most_switches);
}
template <class Archive>
void fields(Archive& a, RingView& m) {
  a.text(1, "mismatch", m.view.mismatch, session::longest_text);
  a.ranks(2, "missing", m.view.missing);
  a.number(3, "instance", m.instance);
}
template <class Archive>
void fields(Archive& a, Uninstall& m) {
  a.number(1, "job_epoch", m.job_epoch);
}
template <class Archive>
void fields(Archive&, Done&) {}

}  // namespace netsum::control
