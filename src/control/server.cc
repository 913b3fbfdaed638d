#include "control/server.h"

#include <grpcpp/grpcpp.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "control/convert.h"
#include "control/netsum.grpc.pb.h"
#include "session/installations.h"
#include "session/words.h"

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

  grpc::Status Hello(grpc::ServerContext* context, const proto::HelloRequest* message, proto::HelloReply* reply) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    for (const Endpoint& lane : hooks.lanes()) to_proto(lane, *reply->add_lanes());
    reply->set_instance(instance);
    reply->set_local_socket(hooks.local_socket);
    if (hooks.groups && !message->job().empty()) to_proto(hooks.groups(message->job()), *reply->mutable_groups());
    if (hooks.pool) {
      const auto [slots, elements] = hooks.pool();
      reply->set_pool_slots(slots);
      reply->set_pool_elements(elements);
    }
    return grpc::Status::OK;
  }

  grpc::Status Install(grpc::ServerContext* context, const proto::Installation* message, proto::InstallReply*) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    if (!hooks.install) return {grpc::StatusCode::FAILED_PRECONDITION, "this is no switch, but a parameter server"};
    const auto installation = from_proto(*message);
    if (!installation) return {grpc::StatusCode::INVALID_ARGUMENT, "malformed data endpoint"};
    return install_with_lease(installation->job_epoch, [&] { hooks.install(*installation); });
  }

  grpc::Status InstallRing(grpc::ServerContext* context, const proto::RingInstallation* message,
                           proto::RingView* reply) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    if (!hooks.install_ring) return {grpc::StatusCode::FAILED_PRECONDITION, "this is no switch, but a parameter server"};
    const auto installation = from_proto(*message);
    if (!installation) return {grpc::StatusCode::INVALID_ARGUMENT, "malformed data endpoint or queue pair"};
    return install_with_lease(installation->start.admission.job_epoch, [&] {
      const session::JobView view = hooks.install_ring(*installation);
      reply->set_mismatch(view.mismatch);
      to_proto(view.missing, *reply->mutable_missing());
    });
  }

  grpc::Status Uninstall(grpc::ServerContext* context, const proto::Membership* message, proto::LeaveReply*) override {
    if (grpc::Status status = authenticate(*context); !status.ok()) return status;
    const std::lock_guard lock(mutex);
    if (leases.erase(message->job_epoch()) != 0) hooks.uninstall(message->job_epoch());
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
        // Its switches first: without them the job would start on a detour, or cannot start. A job that needs one which does
        // not answer fails meanwhile.
        while (!stopping && !installations.ready(admission.job_epoch, now())) changed.wait_for(lock, tick);
        registry.admission_told(admission.job_epoch, now());
        reply->set_job_epoch(admission.job_epoch);
        reply->set_rank_epoch(admission.rank_epoch);
        to_proto(admission.placement, *reply->mutable_placement());
        to_proto(admission.resumption, *reply->mutable_resumption());
        reply->mutable_rank_epochs()->Add(admission.rank_epochs.begin(), admission.rank_epochs.end());
        reply->set_packet_elements(admission.packet_elements);
        reply->set_slots(admission.slots);
        reply->set_message_packets(admission.message_packets);
        reply->set_local(admission.local);
        reply->set_why_not_local(admission.why_not_local);
        for (const auto& rank : admission.members) {
          proto::Members& lanes = *reply->add_members();
          for (const auto& member : rank) to_proto(member, *lanes.add_lanes());
        }
        return grpc::Status::OK;
      }
      if (now() >= deadline || context->IsCancelled()) {
        const RankSet missing = registry.cancel_join(ticket, now());
        carry_out();
        if (missing.empty()) {
          return {grpc::StatusCode::DEADLINE_EXCEEDED, "job '" + request.job + "': rank " + std::to_string(request.rank) +
                                                           "'s former process has not ended in time"};
        }
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
    const session::JobView view = look(message->job_epoch());
    if (!view.mismatch.empty()) {
      registry.fail_mismatch(message->job_epoch(), view.mismatch, now());
      carry_out();
    }
    const auto answer = registry.heartbeat(message->job_epoch(), message->rank(), message->rank_epoch(), now());
    using State = session::HeartbeatReply::State;
    reply->set_state(answer.state == State::running  ? proto::HeartbeatReply::RUNNING
                     : answer.state == State::failed ? proto::HeartbeatReply::FAILED
                                                     : proto::HeartbeatReply::UNKNOWN);
    reply->set_reason(answer.reason);
    if (answer.lost) reply->set_lost(*answer.lost);
    reply->set_mismatch(answer.mismatch);
    to_proto(answer.left, *reply->mutable_left());
    to_proto(view.missing, *reply->mutable_missing());
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

  template <class Install>
  grpc::Status install_with_lease(std::uint64_t job_epoch, const Install& install) {
    const std::lock_guard lock(mutex);
    if (leases.size() >= most_leases && !leases.contains(job_epoch)) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "this switch serves " + std::to_string(most_leases) + " jobs already"};
    }
    try {
      install();
    } catch (const Error& error) {
      return {grpc::StatusCode::FAILED_PRECONDITION, error.what()};
    }
    leases[job_epoch] = now() + session::installation_lease;
    return grpc::Status::OK;
  }

  // What is known here, and what the switches below have said.
  [[nodiscard]] session::JobView look(std::uint64_t job_epoch) const {
    session::JobView view = hooks.look ? hooks.look(job_epoch) : session::JobView{};
    const auto job = running.find(job_epoch);
    if (job == running.end()) return view;
    for (const auto& [name, of_switch] : job->second.views) {
      if (!of_switch.mismatch.empty()) view.mismatch = of_switch.mismatch;
      view.missing = session::refined(view.missing, job->second.start.admission.placement, name, of_switch.missing);
    }
    return view;
  }

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
    for (const auto& stop : registry.take_stops()) {
      hooks.stop_job(stop);
      installations.remove(stop.job_epoch);
      if (auto ended = running.extract(stop.job_epoch); !ended.empty()) {
        for (const auto& a_switch : ended.mapped().start.admission.placement.switches) {
          parting.emplace_back(a_switch, stop.job_epoch);
        }
      }
    }
    for (const auto& start : registry.take_starts()) {
      hooks.start_job(start);
      if (hooks.tell_switch) {
        running[start.admission.job_epoch] = {start, {}};
        installations.add(start.admission.job_epoch, start.admission.placement.switches, now(), start.switches_needed);
      }
      if (hooks.log) {
        hooks.log("job '" + start.job + "': " + std::to_string(start.endpoints.size()) + " ranks, " +
                  std::to_string(start.admission.packet_elements) + " elements per packet, " +
                  std::to_string(start.admission.slots) + " slots per lane" +
                  (start.admission.local ? ", in shared memory" : ""));
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
      std::erase_if(leases, [&](const auto& lease) {
        if (now() < lease.second) return false;
        hooks.uninstall(lease.first);
        return true;
      });
      for (const auto& silent : installations.silent(now())) {
        fail_without(silent, "it has not answered for " + session::in_seconds(session::installation_lease));
      }
      if (now() < registry.next_timeout()) continue;
      registry.on_timer(now());
      carry_out();
    }
  }

  void fail_without(const session::Installations::Due& a_switch, const std::string& why) {
    registry.fail(a_switch.job_epoch, "it cannot do without switch " + a_switch.a_switch + ": " + why, now());
    carry_out();
  }

  // The thread that tells switches of jobs: whatever answers slowly, or not at all, delays nothing else.
  void tell_switches() {
    std::unique_lock lock(mutex);
    while (!stopping || !parting.empty()) {
      for (const auto& [a_switch, epoch] : std::exchange(parting, {})) {
        lock.unlock();
        try {
          hooks.untell_switch(a_switch, epoch);
        } catch (const Error&) {
          // Its lease ends by itself.
        }
        lock.lock();
      }
      for (const auto& due : installations.take_due(now())) {
        const auto found = running.find(due.job_epoch);
        if (stopping || found == running.end()) continue;
        const session::StartJob start = found->second.start;
        lock.unlock();
        std::string complaint;
        bool refused = false;
        session::JobView view;
        try {
          const auto& names = start.admission.placement.switches;
          const auto index = std::find(names.begin(), names.end(), due.a_switch) - names.begin();
          view = hooks.tell_switch(start, static_cast<std::uint32_t>(index), due.again);
        } catch (const Error& error) {
          complaint = error.what();
          refused = error.code() == ErrorCode::refused;
        }
        lock.lock();
        if (complaint.empty()) {
          installations.on_installed(due.job_epoch, due.a_switch, now());
          if (const auto job = running.find(due.job_epoch); job != running.end()) job->second.views[due.a_switch] = view;
          changed.notify_all();
        } else if (refused && start.switches_needed) {
          fail_without(due, complaint);
        } else if (complained.insert(due.a_switch + complaint).second && hooks.log) {
          hooks.log("warning: switch " + due.a_switch + " does not take part in job '" + start.job + "': " + complaint);
        }
      }
      changed.wait_for(lock, tick);
    }
  }

  static constexpr std::size_t most_leases = 1024;

  ServerOptions options;
  ServerHooks hooks;
  std::mutex mutex;  // of all below
  std::condition_variable changed;
  session::Registry registry;
  std::set<std::uint64_t> told;
  session::Installations installations;
  struct Running {
    session::StartJob start;
    std::map<std::string, session::JobView> views;  // of the switches
  };
  std::map<std::uint64_t, Running> running;                    // by epoch, with switches to tell
  std::vector<std::pair<std::string, std::uint64_t>> parting;  // switches to tell that a job has ended
  std::set<std::string> complained;
  std::map<std::uint64_t, Time> leases;  // of jobs installed here
  bool stopping = false;

  std::uint64_t instance = system_random();
  Time started = now();
  std::string address;
  std::unique_ptr<grpc::Server> server;
  std::thread timer, teller;
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
  if (impl_->hooks.tell_switch) impl_->teller = std::thread([impl = impl_.get()] { impl->tell_switches(); });
}

Server::~Server() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
    impl_->registry.shut_down(now());
    impl_->carry_out();
  }
  impl_->changed.notify_all();
  impl_->timer.join();
  if (impl_->teller.joinable()) impl_->teller.join();
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  impl_->server->Wait();
}

std::string Server::address() const {
  return impl_->address;
}
void Server::lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how) {
  const std::lock_guard lock(impl_->mutex);
  impl_->registry.lose(job_epoch, rank, how, now());
  impl_->carry_out();
}
telemetry::Report Server::report() {
  return impl_->report();
}

}  // namespace netsum::control
