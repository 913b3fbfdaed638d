#include "control/server.h"

#include <grpcpp/grpcpp.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "control/convert.h"
#include "control/netsum.grpc.pb.h"

namespace netsum::control {
namespace {

constexpr auto tick = std::chrono::milliseconds(100);
constexpr auto longest_join = std::chrono::minutes(30);

Time now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch());
}

std::uint64_t system_random() {
  std::uint64_t value = 0;
  unsigned char bytes[sizeof value];
  if (RAND_bytes(bytes, sizeof bytes) != 1) throw Error(ErrorCode::internal, "the system has no random numbers");
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::string read_file(const std::string& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::bad_argument, std::string("cannot read '") + path + "' (" + flag + ")");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string list(const RankSet& set) {
  std::string text;
  for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
    if (set.contains(rank)) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

grpc::Status refused(const session::JoinOutcome& outcome) {
  return {grpc::StatusCode::FAILED_PRECONDITION, outcome.reason + " (" + session::to_string(outcome.refusal) + ")"};
}

}  // namespace

struct Server::Impl final : proto::Aggregator::Service {
  Impl(ServerOptions o, ServerHooks h) : options(std::move(o)), hooks(std::move(h)), registry(options.registry) {}

  // ---- the service

  grpc::Status Hello(grpc::ServerContext* context, const proto::HelloRequest*, proto::HelloReply* reply) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    for (const Endpoint& lane : hooks.lanes()) to_proto(lane, *reply->add_lanes());
    reply->set_instance(instance);
    return grpc::Status::OK;
  }

  grpc::Status Join(grpc::ServerContext* context, const proto::JoinRequest* message, proto::JoinReply* reply) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    const auto parsed = from_proto(*message);
    if (!parsed) return {grpc::StatusCode::INVALID_ARGUMENT, "malformed data endpoint"};
    const session::JoinRequest& request = *parsed;
    const auto wait = std::min<std::chrono::nanoseconds>(std::chrono::milliseconds(message->wait_ms()), longest_join);
    const Time deadline = now() + wait;

    std::unique_lock lock(mutex);
    const std::uint64_t ticket = registry.join(request, now());
    carry_out();
    while (true) {
      if (auto outcome = registry.join_outcome(ticket)) {
        if (outcome->refusal != session::Refusal::none) return refused(*outcome);
        const session::Admission& admission = *outcome->admission;
        reply->set_job_epoch(admission.job_epoch);
        reply->set_rank_epoch(admission.rank_epoch);
        to_proto(admission.placement, *reply->mutable_placement());
        reply->mutable_rank_epochs()->Add(admission.rank_epochs.begin(), admission.rank_epochs.end());
        reply->set_packet_elements(admission.packet_elements);
        reply->set_slots(admission.slots);
        return grpc::Status::OK;
      }
      if (now() >= deadline || context->IsCancelled()) {
        const RankSet missing = registry.cancel_join(ticket, now());
        carry_out();
        return {grpc::StatusCode::DEADLINE_EXCEEDED, "job '" + request.job + "': ranks " + list(missing) + " of " +
                                                         std::to_string(request.world_size) + " have not joined in time"};
      }
      changed.wait_for(lock, tick);
    }
  }

  grpc::Status Heartbeat(grpc::ServerContext* context, const proto::Membership* message,
                         proto::HeartbeatReply* reply) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    const std::lock_guard lock(mutex);
    const auto answer = registry.heartbeat(message->job_epoch(), message->rank(), message->rank_epoch(), now());
    using State = session::HeartbeatReply::State;
    reply->set_state(answer.state == State::running  ? proto::HeartbeatReply::RUNNING
                     : answer.state == State::failed ? proto::HeartbeatReply::FAILED
                                                     : proto::HeartbeatReply::UNKNOWN);
    reply->set_reason(answer.reason);
    if (answer.lost) reply->set_lost(*answer.lost);
    for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
      if (answer.left.contains(rank)) reply->add_left(rank);
    }
    return grpc::Status::OK;
  }

  grpc::Status Leave(grpc::ServerContext* context, const proto::Membership* message, proto::LeaveReply*) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    const std::lock_guard lock(mutex);
    registry.leave(message->job_epoch(), message->rank(), message->rank_epoch(), now());
    carry_out();
    return grpc::Status::OK;
  }

  grpc::Status Status(grpc::ServerContext* context, const proto::StatusRequest*, proto::StatusReply* reply) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    reply->set_report_json(telemetry::to_json(report()));
    return grpc::Status::OK;
  }

  // ---- behind it

  [[nodiscard]] grpc::Status authenticate(const grpc::ServerContext& context) const {
    if (options.token.empty()) return grpc::Status::OK;
    const auto found = context.client_metadata().find(token_key);
    if (found != context.client_metadata().end() && found->second.size() == options.token.size() &&
        CRYPTO_memcmp(found->second.data(), options.token.data(), options.token.size()) == 0) {
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::UNAUTHENTICATED, found == context.client_metadata().end()
                                                   ? "this aggregator wants a token: pass --token-file (NETSUM_TOKEN_FILE)"
                                                   : "wrong token"};
  }

  // With the mutex held, so that a job is on the lanes before any rank hears of its admission.
  void carry_out() {
    for (const auto& stop : registry.take_stops()) hooks.stop_job(stop);
    for (const auto& start : registry.take_starts()) {
      hooks.start_job(start);
      if (hooks.log) {
        hooks.log("job '" + start.job + "': " + std::to_string(start.endpoints.size()) + " ranks, " +
                  std::to_string(start.admission.packet_elements) + " elements per packet, " +
                  std::to_string(start.admission.slots) + " slots per lane");
      }
    }
    for (const auto& job : registry.jobs()) {
      if (!job.failure.empty() && told.insert(job.job_epoch).second && hooks.log)
        hooks.log("job '" + job.job + "' failed: " + job.failure);
    }
    changed.notify_all();
  }

  [[nodiscard]] telemetry::Report report() {
    telemetry::Report out;
    {
      const std::lock_guard lock(mutex);
      out.slots = options.registry.slots;
      out.slots_free = registry.slots_free();
      for (auto& job : registry.jobs()) out.jobs.push_back({std::move(job), {}, {}});
    }
    out.lanes = options.registry.lanes;
    out.uptime_seconds = std::chrono::duration<double>(now() - started).count();
    hooks.fill_report(out);
    return out;
  }

  void keep_time() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      changed.wait_for(lock, tick);
      if (now() < registry.next_timeout()) continue;
      registry.on_timer(now());
      carry_out();
    }
  }

  ServerOptions options;
  ServerHooks hooks;
  std::mutex mutex;  // of all below
  std::condition_variable changed;
  session::Registry registry;
  std::set<std::uint64_t> told;
  bool stopping = false;

  std::uint64_t instance = system_random();
  Time started = now();
  std::string address;
  std::unique_ptr<grpc::Server> server;
  std::thread timer;
};

Server::Server(ServerOptions options, ServerHooks hooks) {
  if (!options.registry.random) options.registry.random = &system_random;
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    throw Error(ErrorCode::bad_argument, "--tls-cert and --tls-key go together");
  }
  if (!options.tls_cert.empty()) {
    grpc::SslServerCredentialsOptions tls;
    tls.pem_key_cert_pairs.push_back({read_file(options.tls_key, "--tls-key"), read_file(options.tls_cert, "--tls-cert")});
    credentials = grpc::SslServerCredentials(tls);
  }
  impl_ = std::make_unique<Impl>(std::move(options), std::move(hooks));
  const std::string& listen = impl_->options.listen;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(listen, credentials, &port);
  builder.RegisterService(impl_.get());
  impl_->server = builder.BuildAndStart();
  if (!impl_->server || port == 0) {
    throw Error(ErrorCode::refused,
                "cannot listen on " + listen + ": the address is in use, not of this host, or the certificate is bad");
  }
  impl_->address = listen.substr(0, listen.rfind(':') + 1) + std::to_string(port);
  impl_->timer = std::thread([impl = impl_.get()] { impl->keep_time(); });
}

Server::~Server() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->registry.shut_down(now());
    impl_->carry_out();
  }
  impl_->timer.join();
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  impl_->server->Wait();
}

std::string Server::address() const {
  return impl_->address;
}
telemetry::Report Server::report() {
  return impl_->report();
}

}  // namespace netsum::control
