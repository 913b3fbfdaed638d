#include "control/client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/waiting.h"
#include "control/border.h"
#include "control/channel.h"
#include "control/credentials.h"
#include "control/netsum.grpc.pb.h"

namespace netsum::control {
namespace {

using Stub = proto::Aggregator::Stub;

// How much longer than its deadline a call waits for the aggregator's reason.
constexpr auto grace = std::chrono::seconds(2);

}  // namespace

struct Client::Impl {
  const ClientOptions options;
  Credentials credentials;
  std::unique_ptr<Stub> stub;

  explicit Impl(ClientOptions o) : options(std::move(o)), credentials(options.token, options.daemon_token) {}

  // A daemon that needs a proof refuses once, with its challenge.
  template <class Request, class Reply>
  [[nodiscard]] grpc::Status call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                                  const char* name, std::chrono::milliseconds deadline, const Request& request, Reply& reply,
                                  const std::stop_token& stop = {}, bool wait_for_ready = false) {
    check_may_wait("an aggregator's answer");
    const auto end = std::chrono::system_clock::now() + deadline;
    const std::string bytes = credentials.empty() ? std::string() : request.SerializeAsString();
    for (bool again = false;; again = true) {
      grpc::ClientContext context;
      const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
      context.set_deadline(end);
      context.set_wait_for_ready(wait_for_ready);
      prove(context, credentials, name, bytes);
      const grpc::Status status = (stub.get()->*method)(&context, request, &reply);
      if (again || !challenged(context, status, credentials)) return status;
    }
  }

  void check(const grpc::Status& status) const {
    if (!status.ok()) throw error_of(status, options.address);
  }
  // Of a call that may be this process's first one.
  void check_greeting(const grpc::Status& status) const {
    if (!status.ok()) throw error_of_greeting(status, options);
  }

  template <class Value>
  [[nodiscard]] Value accept(Parsed<Value> parsed) const {
    if (parsed) return std::move(*parsed);
    throw Error(ErrorCode::internal, "invalid reply from aggregator " + options.address + ": " + parsed.why() +
                                         ": does it run the same version of netsum?");
  }
};

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->stub = proto::Aggregator::NewStub(open_channel(impl_->options, impl_->options.address));
}

Client::~Client() = default;
Client::Client(Client&&) noexcept = default;

Hello Client::hello(std::chrono::milliseconds deadline, const std::string& job) {
  proto::HelloRequest message;
  write(job, message);
  proto::HelloReply reply;
  // Also finds a switch that starts a moment later.
  const grpc::Status status = impl_->call(&Stub::Hello, "Hello", deadline, message, reply, {}, true);
  impl_->check_greeting(status);
  return impl_->accept(parse(reply));
}

session::Admission Client::join(const session::JoinRequest& request, const session::ProtocolRules& rules,
                                std::chrono::milliseconds deadline, const std::stop_token& stop) {
  proto::JoinRequest message;
  write(Join{request, deadline}, message);
  proto::JoinReply reply;
  const grpc::Status status = impl_->call(&Stub::Join, "Join", deadline + grace, message, reply, stop);
  if (stop.stop_requested()) throw Error(ErrorCode::closed, "joining job '" + request.job + "' was given up");
  impl_->check(status);
  session::Admission admission = impl_->accept(parse(reply, request, rules));
  if (impl_->options.tls_ca.empty() && admission.security != PacketSecurity::none) {
    throw Error(ErrorCode::internal,
                "aggregator " + impl_->options.address + " sent keys without TLS, where others read them");
  }
  return admission;
}

session::HeartbeatReply Client::heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                                          std::chrono::milliseconds deadline) {
  proto::Membership message;
  write(Life{job_epoch, rank, rank_epoch}, message);
  proto::HeartbeatReply reply;
  impl_->check(impl_->call(&Stub::Heartbeat, "Heartbeat", deadline, message, reply));
  return impl_->accept(parse(reply));
}

void Client::leave(const Life& life, std::chrono::milliseconds deadline) {
  proto::Membership message;
  write(life, message);
  proto::LeaveReply reply;
  impl_->check(impl_->call(&Stub::Leave, "Leave", deadline, message, reply));
}

telemetry::Report Client::report(std::chrono::milliseconds deadline) {
  proto::StatusReply reply;
  const grpc::Status status = impl_->call(&Stub::Status, "Status", deadline, proto::StatusRequest(), reply);
  impl_->check_greeting(status);
  return impl_->accept(parse(reply));
}

void Client::end(const session::NamedJob& job, std::chrono::milliseconds deadline) {
  proto::NamedJob message;
  write(job, message);
  proto::EndReply reply;
  impl_->check_greeting(impl_->call(&Stub::End, "End", deadline, message, reply));
}

void Client::drain(bool undo, std::chrono::milliseconds deadline) {
  proto::DrainRequest message;
  message.set_undo(undo);
  proto::DrainReply reply;
  impl_->check_greeting(impl_->call(&Stub::Drain, "Drain", deadline, message, reply));
}

std::string Client::flight_record(const session::NamedJob& job, std::chrono::milliseconds deadline) {
  proto::NamedJob message;
  write(job, message);
  proto::ExplainReply reply;
  impl_->check_greeting(impl_->call(&Stub::Explain, "Explain", deadline, message, reply));
  return reply.record_json();
}

}  // namespace netsum::control
