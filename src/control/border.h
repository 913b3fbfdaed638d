// The border between protocol buffers and the structures of session/. Every message from outside, in either direction, is
// parsed here into a value that has passed all checks of the message by itself (session/check.h), or into a one-line reason
// why it is wrong. No protocol buffer passes this border: elsewhere only gRPC's own signatures, in server.cc and client.cc,
// name them (tests/lint/check_includes.py).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/endpoint.h"
#include "control/client.h"
#include "control/netsum.pb.h"
#include "session/job_view.h"
#include "session/netreduce_job.h"
#include "session/protocol_rules.h"
#include "session/registry.h"
#include "telemetry/report.h"

namespace netsum::control {

namespace proto = v1;

// A message's value, or what is wrong with it.
template <class Value>
class Parsed {
 public:
  Parsed(Value value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): as std::expected
  [[nodiscard]] static Parsed wrong(std::string why) {
    Parsed none;
    none.why_ = std::move(why);
    return none;
  }

  [[nodiscard]] explicit operator bool() const { return value_.has_value(); }
  [[nodiscard]] const Value& operator*() const { return *value_; }
  [[nodiscard]] Value& operator*() { return *value_; }
  [[nodiscard]] const Value* operator->() const { return &*value_; }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  Parsed() = default;
  std::optional<Value> value_;
  std::string why_;
};

struct Join {
  session::JoinRequest request;
  std::chrono::milliseconds wait{};  // for the other ranks
};

// Requests, as an aggregator receives them.
[[nodiscard]] Parsed<std::string> parse(const proto::HelloRequest& in);  // the job's name, or nothing
[[nodiscard]] Parsed<Join> parse(const proto::JoinRequest& in);
[[nodiscard]] Parsed<Life> parse(const proto::Membership& in);
[[nodiscard]] Parsed<session::NamedJob> parse(const proto::NamedJob& in);
[[nodiscard]] Parsed<bool> parse(const proto::DrainRequest& in);                   // whether to undo it
[[nodiscard]] Parsed<std::uint64_t> parse_uninstall(const proto::Membership& in);  // the job's epoch
[[nodiscard]] Parsed<session::Installation> parse(const proto::Installation& in);
[[nodiscard]] Parsed<session::TreeInstallation> parse(const proto::TreeInstallation& in);

// Replies, as a rank or an aggregator above receives them.
[[nodiscard]] Parsed<Hello> parse(const proto::HelloReply& in);
[[nodiscard]] Parsed<session::Admission> parse(const proto::JoinReply& in, const session::JoinRequest& asked,
                                               const session::ProtocolRules& rules);
[[nodiscard]] Parsed<session::HeartbeatReply> parse(const proto::HeartbeatReply& in);
[[nodiscard]] Parsed<session::JobView> parse(const proto::RingView& in);
[[nodiscard]] Parsed<telemetry::Report> parse(const proto::StatusReply& in);

// Part of several messages.
[[nodiscard]] Parsed<Endpoint> parse(const proto::Endpoint& in);

// The reverse. Texts leave as one line each.
void write(const std::string& job, proto::HelloRequest& out);
void write(const Join& join, proto::JoinRequest& out);
void write(const Life& life, proto::Membership& out);
void write(const session::NamedJob& named, proto::NamedJob& out);
void write_uninstall(std::uint64_t job_epoch, proto::Membership& out);
void write(const session::Installation& installation, proto::Installation& out);
void write(const session::TreeInstallation& installation, proto::TreeInstallation& out);
void write(const Hello& hello, proto::HelloReply& out);
void write(const session::Admission& admission, proto::JoinReply& out);
void write(const session::HeartbeatReply& reply, proto::HeartbeatReply& out);
void write(const session::JobView& view, proto::RingView& out);
void write(const telemetry::Report& report, proto::StatusReply& out);
void write(const Endpoint& endpoint, proto::Endpoint& out);

}  // namespace netsum::control
