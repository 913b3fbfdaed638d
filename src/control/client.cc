#include "control/client.h"

#include <grpcpp/grpcpp.h>

#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "control/convert.h"
#include "control/netsum.grpc.pb.h"

namespace netsum::control {
namespace {

// How much longer than its own deadline a call waits for the aggregator's word on why it ended.
constexpr auto grace = std::chrono::seconds(2);

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::bad_argument, "cannot read '" + path + "'");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

struct Client::Impl {
  ClientOptions options;
  std::unique_ptr<proto::Aggregator::Stub> stub;

  void prepare(grpc::ClientContext& context, std::chrono::milliseconds deadline) const {
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    if (!options.token.empty()) context.AddMetadata(token_key, options.token);
  }

  [[noreturn]] void fail(const grpc::Status& status) const {
    const std::string at = "aggregator " + options.address;
    switch (status.error_code()) {
      case grpc::StatusCode::UNAVAILABLE:
        throw Error(ErrorCode::unreachable,
                    at + " is not reachable: " + status.error_message() + ": is netsum running there, and the port open?");
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        throw Error(ErrorCode::deadline, at + ": " + status.error_message());
      case grpc::StatusCode::INTERNAL:
      case grpc::StatusCode::UNKNOWN:
        throw Error(ErrorCode::internal, at + ": " + status.error_message());
      default:
        throw Error(ErrorCode::refused, at + " refused: " + status.error_message());
    }
  }

  void check(const grpc::Status& status) const {
    if (!status.ok()) fail(status);
  }
};

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>()) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!options.tls_ca.empty())
    credentials =
        grpc::SslCredentials({.pem_root_certs = read_file(options.tls_ca), .pem_private_key = {}, .pem_cert_chain = {}});
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  impl_->stub = proto::Aggregator::NewStub(grpc::CreateCustomChannel(options.address, credentials, arguments));
  impl_->options = std::move(options);
}

Client::~Client() = default;
Client::Client(Client&&) noexcept = default;

Hello Client::hello(std::chrono::milliseconds deadline, const std::string& job) {
  grpc::ClientContext context;
  impl_->prepare(context, deadline);
  context.set_wait_for_ready(true);  // a switch that starts a moment later is found
  proto::HelloRequest message;
  message.set_job(job);
  proto::HelloReply reply;
  const grpc::Status status = impl_->stub->Hello(&context, message, &reply);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    const std::string& ca = impl_->options.tls_ca;
    throw Error(ErrorCode::unreachable, "aggregator " + impl_->options.address + " was not reachable within " +
                                            std::to_string(deadline.count()) + " ms" +
                                            (ca.empty() ? " without TLS" : " over TLS with the CA " + ca) +
                                            ": is netsum running there, and the port open?");
  }
  impl_->check(status);
  Hello hello;
  hello.instance = reply.instance();
  hello.pool_slots = reply.pool_slots();
  hello.pool_elements = reply.pool_elements();
  hello.local_socket = reply.local_socket();
  if (!from_proto(reply.lanes(), hello.lanes) || !from_proto(reply.groups(), hello.groups)) {
    throw Error(ErrorCode::internal, "aggregator " + impl_->options.address + " sent a malformed address");
  }
  return hello;
}

session::Admission Client::join(const session::JoinRequest& request, std::chrono::milliseconds deadline,
                                const std::stop_token& stop) {
  grpc::ClientContext context;
  const std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
  impl_->prepare(context, deadline + grace);
  proto::JoinRequest message;
  message.set_protocol_version(request.protocol_version);
  message.set_protocol(request.protocol);
  message.set_job(request.job);
  message.set_rank(request.rank);
  message.set_world_size(request.world_size);
  message.set_packet_elements(request.packet_elements);
  message.set_slots_fixed(request.slots_fixed);
  message.set_slots_measured(request.slots_measured);
  for (const Endpoint& endpoint : request.endpoints) to_proto(endpoint, *message.add_endpoints());
  message.set_switch_address(request.switch_address);
  message.set_pool_slots(request.pool_slots);
  message.set_recovers(request.recovers);
  if (request.progress.next != stream::Progress::anywhere) to_proto(request.progress, *message.mutable_progress());
  for (const std::string& address : request.aggregators) message.add_aggregators(address);
  message.set_former_epoch(request.former_epoch);
  message.set_message_packets(request.message_packets);
  message.set_local_ticket(request.local_ticket);
  message.set_why_not_local(request.why_not_local);
  message.set_needs_local(request.needs_local);
  message.set_listens(request.listens);
  for (const netreduce::Member& member : request.members) to_proto(member, *message.add_members());
  message.set_wait_ms(static_cast<std::uint32_t>(deadline.count()));
  proto::JoinReply reply;
  const grpc::Status status = impl_->stub->Join(&context, message, &reply);
  if (stop.stop_requested()) throw Error(ErrorCode::closed, "joining job '" + request.job + "' was given up");
  impl_->check(status);
  session::Admission admission{reply.job_epoch(),
                               reply.rank_epoch(),
                               {reply.rank_epochs().begin(), reply.rank_epochs().end()},
                               reply.packet_elements(),
                               reply.slots(),
                               from_proto(reply.placement()),
                               from_proto(reply.resumption()),
                               reply.message_packets(),
                               {},
                               reply.local(),
                               reply.why_not_local()};
  for (const auto& rank : reply.members()) {
    auto& lanes = admission.members.emplace_back();
    for (const auto& lane : rank.lanes()) {
      const auto member = from_proto(lane);
      if (!member) throw Error(ErrorCode::internal, "aggregator " + impl_->options.address + " sent a malformed queue pair");
      lanes.push_back(*member);
    }
  }
  return admission;
}

session::HeartbeatReply Client::heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                                          std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  impl_->prepare(context, deadline);
  proto::Membership message;
  message.set_job_epoch(job_epoch);
  message.set_rank(rank);
  message.set_rank_epoch(rank_epoch);
  proto::HeartbeatReply reply;
  impl_->check(impl_->stub->Heartbeat(&context, message, &reply));
  session::HeartbeatReply out;
  if (reply.state() == proto::HeartbeatReply::RUNNING) out.state = session::HeartbeatReply::State::running;
  if (reply.state() == proto::HeartbeatReply::FAILED) out.state = session::HeartbeatReply::State::failed;
  out.reason = reply.reason();
  if (reply.has_lost()) out.lost = reply.lost();
  out.mismatch = reply.mismatch();
  out.left = from_proto(reply.left());
  out.missing = from_proto(reply.missing());
  return out;
}

void Client::leave(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                   std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  impl_->prepare(context, deadline);
  proto::Membership message;
  message.set_job_epoch(job_epoch);
  message.set_rank(rank);
  message.set_rank_epoch(rank_epoch);
  proto::LeaveReply reply;
  impl_->check(impl_->stub->Leave(&context, message, &reply));
}

void Client::install(const session::Installation& installation, std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  impl_->prepare(context, deadline);
  proto::Installation message;
  to_proto(installation, message);
  proto::InstallReply reply;
  impl_->check(impl_->stub->Install(&context, message, &reply));
}

session::JobView Client::install(const session::RingInstallation& installation, std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  impl_->prepare(context, deadline);
  proto::RingInstallation message;
  to_proto(installation, message);
  proto::RingView reply;
  impl_->check(impl_->stub->InstallRing(&context, message, &reply));
  return {reply.mismatch(), from_proto(reply.missing())};
}

void Client::uninstall(std::uint64_t job_epoch, std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  impl_->prepare(context, deadline);
  proto::Membership message;
  message.set_job_epoch(job_epoch);
  proto::LeaveReply reply;
  impl_->check(impl_->stub->Uninstall(&context, message, &reply));
}

telemetry::Report Client::report(std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  impl_->prepare(context, deadline);
  proto::StatusReply reply;
  impl_->check(impl_->stub->Status(&context, {}, &reply));
  return telemetry::from_json(reply.report_json());
}

}  // namespace netsum::control
