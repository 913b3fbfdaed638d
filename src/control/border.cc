#include "control/border.h"

#include <algorithm>
#include <array>

#include "encoding/codec.h"
#include "netsum/error.h"
#include "session/check.h"

namespace netsum::control {
namespace {

void demand(bool holds, const char* otherwise) {
  if (!holds) throw encoding::Nonsense{otherwise};
}
void demand_none(std::string error) {
  if (!error.empty()) throw encoding::Nonsense{std::move(error)};
}

// ---- what must hold of each message by itself

constexpr char no_nonce[] = "the nonce does not have 16 bytes";
constexpr char no_epoch[] = "an epoch is 0";

void check_sound(Greeting& m) {
  demand(m.nonce.size() == nonce_bytes, no_nonce);
  m.version = session::one_line(m.version);
  m.fingerprint = session::one_line(m.fingerprint);
}
void check_sound(Challenge& m) {
  demand(m.nonce.size() == nonce_bytes, no_nonce);
  m.version = session::one_line(m.version);
  m.fingerprint = session::one_line(m.fingerprint);
}
void check_sound(Proofs&) {}
void check_sound(Done&) {}
void check_sound(StatusRequest&) {}
void check_sound(StatusReply&) {}
void check_sound(Failure& m) {
  m.words = session::one_line(m.words);
}

void check_sound(HelloRequest& m) {
  if (!m.job.empty()) demand_none(session::check_job_name(m.job));
}
void check_sound(Hello& m) {
  for (const Endpoint& lane : m.lanes) {
    demand(session::is_host(lane) || session::is_anywhere(lane),
           "a data socket's address is not a unicast address with a port");
  }
  demand(m.threads <= session::most_lanes, "the number of threads is impossible");
  demand(m.groups.empty() || m.groups.size() == m.lanes.size(), "the number of multicast groups is not the number of lanes");
  demand(std::all_of(m.groups.begin(), m.groups.end(), session::is_group),
         "the address of a group is not a multicast address");
  demand(session::is_name(m.local_socket), "the name of the local socket is not printable");
}
void check_sound(Join& m) {
  // This daemon connects to it.
  demand(m.request.switch_address.empty() || session::is_address(m.request.switch_address),
         "the address of the rank's switch is not HOST:PORT");
  demand_none(session::check(m.request));
}
void check_life(const Life& life) {
  demand(life.job_epoch != 0 && life.rank_epoch != 0, no_epoch);
  demand(life.rank < max_world_size, "the rank is too large");
}
void check_sound(Beat& m) {
  check_life(m.life);
}
void check_sound(Life& m) {
  check_life(m);
  session::Farewell& farewell = m.farewell;
  farewell.reason = session::one_line(farewell.reason);
  if (farewell.cause != session::FailureCause::none && farewell.reason.empty()) {
    farewell.reason = "rank " + std::to_string(m.rank) + " left the job, and gave no reason";
  }
}
void check_sound(session::HeartbeatReply& m) {
  demand_none(session::check(m));
}
void check_sound(session::NamedJob& m) {
  demand_none(session::check_job_name(m.job));
  demand(session::is_name(m.tenant.value_or("")), "the tenant name is not printable");
}
void check_sound(Drain&) {}
void check_sound(FlightRecord&) {}
void check_sound(session::SwitchMessage& m) {
  demand(m.job_epoch != 0, no_epoch);
  demand_none(session::check_job_name(m.job));
  demand(session::is_name(m.protocol), "the protocol name is not printable");
}
void check_sound(InstallReply& m) {
  demand_none(session::check(m.view));
}
void check_sound(Uninstall& m) {
  demand(m.job_epoch != 0, no_epoch);
}

// ---- texts that strangers may have written

template <class Message>
const Message& in_lines(const Message& message) {
  return message;
}
Life in_lines(Life life) {
  life.farewell.reason = session::one_line(life.farewell.reason);
  return life;
}
Beat in_lines(Beat beat) {
  beat.call = session::one_line(beat.call, session::longest_call);
  return beat;
}
session::HeartbeatReply in_lines(session::HeartbeatReply reply) {
  reply.reason = session::one_line(reply.reason);
  reply.warning = session::one_line(reply.warning);
  for (RankCall& stated : reply.calls) stated.call = session::one_line(stated.call, session::longest_call);
  return reply;
}
InstallReply in_lines(InstallReply reply) {
  reply.view.mismatch = session::one_line(reply.view.mismatch);
  reply.view.hopeless = session::one_line(reply.view.hopeless);
  return reply;
}
Failure in_lines(Failure failure) {
  failure.words = session::one_line(failure.words);
  return failure;
}

}  // namespace

template <class Message>
Parsed<Message> parse(std::string_view bytes) {
  return encoding::parsed<Message>(bytes, [](Message& message) { check_sound(message); });
}
template <class Message>
Bytes write(const Message& message) {
  return encoding::encoded(in_lines(message));
}

Parsed<session::Admission> parse_admission(std::string_view bytes, const session::JoinRequest& asked,
                                           const session::ProtocolRules& rules) {
  return encoding::parsed<session::Admission>(
      bytes, [&](const session::Admission& admission) { demand_none(session::check(admission, asked, rules)); });
}

Parsed<telemetry::Report> parse_report(std::string_view bytes) {
  const auto reply = parse<StatusReply>(bytes);
  if (!reply) return Parsed<telemetry::Report>::wrong(reply.why());
  try {
    return telemetry::from_json(reply->report_json);
  } catch (const Error& error) {
    return Parsed<telemetry::Report>::wrong(error.what());
  }
}
Bytes write_report(const telemetry::Report& report) {
  return write(StatusReply{telemetry::to_json(report)});
}

template Parsed<Greeting> parse(std::string_view);
template Parsed<Challenge> parse(std::string_view);
template Parsed<Proofs> parse(std::string_view);
template Parsed<Failure> parse(std::string_view);
template Parsed<HelloRequest> parse(std::string_view);
template Parsed<Hello> parse(std::string_view);
template Parsed<Join> parse(std::string_view);
template Parsed<Beat> parse(std::string_view);
template Parsed<Life> parse(std::string_view);
template Parsed<session::HeartbeatReply> parse(std::string_view);
template Parsed<StatusRequest> parse(std::string_view);
template Parsed<StatusReply> parse(std::string_view);
template Parsed<session::NamedJob> parse(std::string_view);
template Parsed<Drain> parse(std::string_view);
template Parsed<FlightRecord> parse(std::string_view);
template Parsed<session::SwitchMessage> parse(std::string_view);
template Parsed<InstallReply> parse(std::string_view);
template Parsed<Uninstall> parse(std::string_view);
template Parsed<Done> parse(std::string_view);
template Bytes write(const Greeting&);
template Bytes write(const Challenge&);
template Bytes write(const Proofs&);
template Bytes write(const Failure&);
template Bytes write(const HelloRequest&);
template Bytes write(const Hello&);
template Bytes write(const Join&);
template Bytes write(const session::Admission&);
template Bytes write(const Beat&);
template Bytes write(const Life&);
template Bytes write(const session::HeartbeatReply&);
template Bytes write(const StatusRequest&);
template Bytes write(const StatusReply&);
template Bytes write(const session::NamedJob&);
template Bytes write(const Drain&);
template Bytes write(const FlightRecord&);
template Bytes write(const session::SwitchMessage&);
template Bytes write(const InstallReply&);
template Bytes write(const Uninstall&);
template Bytes write(const Done&);

}  // namespace netsum::control
