// The control plane's messages and their fields (encoding/codec.h). Those of one protocol's own parts are in jobs/.
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
#include "session/fields.h"
#include "session/job_view.h"
#include "session/registry.h"
#include "session/switch_message.h"
#include "stream/operation_log.h"

namespace netsum::control {

// ---- before a caller has proved its tokens; docs/architecture.md

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

enum class ErrorKind : std::uint8_t { invalid, refused, excluded, overloaded, busy, late, unauthenticated, internal };
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
  std::vector<Endpoint> lanes;      // the aggregator's data sockets
  std::uint64_t instance = 0;       // random, new at every start of the aggregator
  bool is_switch = false;           // takes jobs of other aggregators
  std::string local_socket;         // for ranks on its host; empty: none
  std::vector<Endpoint> groups;     // of the job, one per lane: results by IP multicast; empty: none
  bool same_host = false;           // the aggregator sees this process at an address of its own host
  std::uint64_t receive_bytes = 0;  // of each lane's receive buffer, including the kernel's overhead per packet; 0: unknown
  bool in_wire = false;             // a bump in the wire: its lanes are for other bumps
  PacketSecurity security = PacketSecurity::none;  // of jobs' packets, if a rank asks for no more
  std::vector<session::Profile> profiles;          // what a protocol says of itself here
  std::uint32_t threads = 1;                       // that serve the lanes
};
struct Join {
  session::JoinRequest request;
  std::chrono::milliseconds wait{};  // for the other ranks
};
struct Beat {
  Life life;
  std::string call{};       // of the rank, in words, if ranks made different ones
  session::SiteSet seen{};  // aggregators that do not serve the job, and answer this rank
  session::Pace pace{};     // in a job that goes on without stragglers
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
  session::JobView view;
  std::uint64_t instance = 0;  // as in Hello
};
struct Uninstall {
  std::uint64_t job_epoch = 0;
};
struct Done {};

inline constexpr std::size_t longest_report = 16 << 20;
inline constexpr std::size_t most_profiles = 16;

// ---- fields

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
void fields(Archive& a, Hello& m) {
  a.list(1, "lanes", m.lanes, session::most_lanes);
  a.number(2, "instance", m.instance);
  a.flag(3, "is_switch", m.is_switch);
  a.list(4, "profiles", m.profiles, most_profiles);
  a.text(5, "local_socket", m.local_socket, session::longest_name);
  a.list(6, "groups", m.groups, session::most_lanes);
  a.flag(7, "same_host", m.same_host);
  a.number(8, "receive_bytes", m.receive_bytes);
  a.choice(9, "security", m.security, PacketSecurity::encrypt);
  a.flag(10, "in_wire", m.in_wire);
  a.number(11, "threads", m.threads);
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
  a.flag(13, "recovers", r.recovers);
  a.message(14, "progress", r.progress);
  a.list(15, "aggregators", r.aggregators, session::most_aggregators);
  a.number(16, "former_epoch", r.former_epoch);
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
  a.text(32, "own", r.own, session::longest_own_ask);
  a.number(33, "survivors", r.survivors);
  a.number(34, "life", r.life);
  a.ranks(35, "members", r.members);
  a.flag(36, "lets_in", r.lets_in);
  a.number(37, "standbys", r.standbys);
  a.number(38, "site", r.site);
  a.ranks(39, "reached", r.reached);
  a.duration(40, "straggler_deadline_ms", r.straggler_deadline);
  a.message(41, "pace", r.pace);
  a.ranks(42, "aside", r.aside);
  a.flag(43, "set_aside", r.set_aside);
}
template <class Archive>
void fields(Archive& a, Beat& m) {
  a.number(1, "job_epoch", m.life.job_epoch);
  a.number(2, "rank", m.life.rank);
  a.number(3, "rank_epoch", m.life.rank_epoch);
  a.text(4, "call", m.call, session::longest_call);
  a.ranks(5, "seen", m.seen);
  a.message(6, "pace", m.pace);
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
void fields(Archive& a, InstallReply& m) {
  a.number(1, "instance", m.instance);
  a.text(2, "mismatch", m.view.mismatch, session::longest_text);
  a.ranks(3, "missing", m.view.missing);
  a.text(4, "hopeless", m.view.hopeless, session::longest_text);
  a.number(5, "first_rank", m.view.first_rank);
  a.number(6, "second_rank", m.view.second_rank);
}
template <class Archive>
void fields(Archive& a, Uninstall& m) {
  a.number(1, "job_epoch", m.job_epoch);
}
template <class Archive>
void fields(Archive&, Done&) {}

}  // namespace netsum::control

// ---- fields of what session/ and stream/ have, which the compiler looks for beside them

namespace netsum::encoding {

template <class Archive>
void fields(Archive& a, std::pair<std::uint64_t, std::uint32_t>& m) {  // of stream::Resumption::replays
  a.number(1, "operation", m.first);
  a.number(2, "rank", m.second);
}

}  // namespace netsum::encoding

namespace netsum::stream {

template <class Archive>
void fields(Archive& a, Progress::Summed& m) {
  a.number(1, "from", m.from);
  a.ranks(2, "ranks", m.ranks);
}
template <class Archive>
void fields(Archive& a, Progress& m) {
  a.number(1, "next", m.next);
  a.number(2, "kept", m.kept);
  a.list(3, "finished", m.finished, OperationLog::most_results);
  a.list(4, "summed", m.summed, Progress::most_sets);
}
template <class Archive>
void fields(Archive& a, Resumption& m) {
  a.number(1, "first", m.first);
  a.map(2, "replays", m.replays, std::size_t{max_world_size} * OperationLog::most_results);
  a.list(3, "summed", m.summed, Progress::most_sets);
  a.ranks(4, "members", m.members);
  a.flag(5, "boundary", m.boundary);
}

}  // namespace netsum::stream

namespace netsum {

template <class Archive>
void fields(Archive& a, RankCall& m) {
  a.number(1, "rank", m.rank);
  a.text(2, "call", m.call, session::longest_call);
}

}  // namespace netsum

namespace netsum::session {

template <class Archive>
void fields(Archive& a, Pace& m) {
  a.flag(1, "calls", m.calls);
  a.number(2, "next", m.next);
  a.duration(3, "since_ms", m.since);
}
template <class Archive>
void fields(Archive& a, Admission& m) {
  a.number(1, "job_epoch", m.job_epoch);
  a.number(2, "rank_epoch", m.rank_epoch);
  a.list(3, "rank_epochs", m.rank_epochs, max_world_size);
  a.number(4, "packet_elements", m.packet_elements);
  a.number(5, "slots", m.slots);
  a.message(6, "placement", m.placement);
  a.message(7, "resumption", m.resumption);
  a.flag(10, "local", m.local);
  a.text(11, "why_not_local", m.why_not_local, longest_text);
  a.choice(12, "security", m.security, PacketSecurity::encrypt);
  a.key(13, "results", m.results);
  a.message(14, "keys", m.keys);
  a.text(15, "own", m.own, longest_own_grant);
  a.number(16, "life", m.life);
  a.ranks(17, "sites", m.sites);
  a.ranks(18, "aside", m.aside);
  a.number(19, "lanes", m.lanes);
}

template <class Archive>
void fields(Archive& a, HeartbeatReply& m) {
  a.choice(1, "state", m.state, HeartbeatReply::State::unknown);
  a.text(2, "reason", m.reason, longest_text);
  a.maybe(3, "lost", m.lost);
  a.ranks(4, "left", m.left);
  a.flag(5, "mismatch", m.mismatch);
  a.ranks(6, "missing", m.missing);
  a.flag(7, "ended_by_operator", m.ended_by_operator);
  a.text(8, "warning", m.warning, longest_text);
  a.list(9, "calls", m.calls, most_stated_calls);
  a.ranks(10, "waiting", m.waiting);
  a.ranks(11, "returned", m.returned);
  a.text(12, "lost_switch", m.lost_switch, longest_name);
  a.flag(13, "straggler", m.straggler);
}
// A job that an operator wants to end, or explained.
template <class Archive>
void fields(Archive& a, NamedJob& m) {
  a.text(1, "job", m.job, longest_name);
  std::string tenant = m.tenant.value_or("");
  a.text(2, "tenant", tenant, longest_name);
  if (!tenant.empty()) m.tenant = std::move(tenant);
}
template <class Archive>
void fields(Archive& a, SwitchMessage& m) {
  a.text(1, "protocol", m.protocol, longest_name);
  a.text(2, "job", m.job, longest_name);
  a.number(3, "job_epoch", m.job_epoch);
  a.flag(4, "again", m.again);
  a.blob(5, "own", m.own, longest_own_grant);
}

}  // namespace netsum::session
