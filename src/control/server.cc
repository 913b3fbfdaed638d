#include "control/server.h"

#include <grpc/grpc_security.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "base/waiting.h"
#include "control/border.h"
#include "control/certificate.h"
#include "control/clock.h"
#include "control/credentials.h"
#include "control/netsum.grpc.pb.h"
#include "session/aggregator.h"
#include "session/supervisor.h"
#include "session/switchml_job.h"
#include "session/words.h"
#include "telemetry/flight_file.h"
#include "telemetry/flight_recorder.h"
#include "transport/random.h"

namespace netsum::control {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using grpc::StatusCode;

constexpr Duration tick = std::chrono::milliseconds(100);  // between two looks at watched jobs
constexpr Duration longest_join = std::chrono::minutes(30);
constexpr std::size_t events_shown = 8;                           // of each job, in reports
constexpr Duration refusals_interval = std::chrono::seconds(10);  // in which no more than these are logged:
constexpr std::size_t most_refusals = 20;
constexpr std::size_t most_leases = 1024;
constexpr std::size_t most_commands = 1024;  // waiting for the control plane's thread

// gRPC's limits for a peer that opens a connection and sends nothing, or nothing more.
constexpr int handshake_ms = 5'000, idle_connection_ms = 60'000;
constexpr int calls_of_one_connection = 256;

// gRPC's own SSL credentials never change. These ask at each handshake.
class ReloadedCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadedCredentials(DaemonCertificate certificate)
      : latest_(std::move(certificate)),
        credentials_(
            grpc_ssl_server_credentials_create_with_options(grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE, &fetch, this))) {}
  ~ReloadedCredentials() override { grpc_server_credentials_release(credentials_); }
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

  void set(DaemonCertificate certificate) {
    const std::lock_guard lock(mutex_);
    latest_ = std::move(certificate);
    changed_ = true;
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }
  static grpc_ssl_certificate_config_reload_status fetch(void* self, grpc_ssl_server_certificate_config** config) {
    auto& own = *static_cast<ReloadedCredentials*>(self);
    const std::lock_guard lock(own.mutex_);
    if (!std::exchange(own.changed_, false)) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{own.latest_.key.c_str(), own.latest_.chain.c_str()};
    // gRPC wants roots, although no caller shows a certificate.
    *config = grpc_ssl_server_certificate_config_create(own.latest_.chain.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  std::mutex mutex_;
  DaemonCertificate latest_;
  bool changed_ = true;
  grpc_server_credentials* const credentials_;
};

std::string list(const RankSet& set) {
  std::string text;
  for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
    if (set.contains(rank)) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

// HOST:PORT of a peer as gRPC names it: ipv4:127.0.0.1:80, ipv6:%5B::1%5D:80.
std::string address_of(const CallbackServerContext& context) {
  const std::string peer = context.peer();
  std::string address;
  for (std::size_t i = peer.find(':') + 1; i < peer.size(); ++i) {
    const std::string_view code = std::string_view(peer).substr(i, 3);
    if (code == "%5B" || code == "%5D") {
      address += code == "%5B" ? '[' : ']';
      i += 2;
    } else {
      address += peer[i];
    }
  }
  return address;
}
std::string host_of(const CallbackServerContext& context) {
  const std::string address = address_of(context);
  return address.substr(0, address.rfind(':'));
}

grpc::Status senseless(const std::string& why) {
  return {StatusCode::INVALID_ARGUMENT, why};
}
grpc::Status refused(const session::JoinOutcome& outcome) {
  return {StatusCode::FAILED_PRECONDITION, outcome.reason + " (" + session::to_string(outcome.refusal) + ")"};
}
grpc::Status overloaded(const std::string& what) {
  return {StatusCode::RESOURCE_EXHAUSTED, what};
}
// Unlike what is refused, this may succeed a moment later, also at the daemon that is started in place of this one.
grpc::Status busy() {
  return {StatusCode::ABORTED, "this daemon is busy, or shutting down: try again later"};
}

ServerUnaryReactor* finish(CallbackServerContext* context, const grpc::Status& status) {
  ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// The error in one line, if memory ran out or the data plane refused.
template <class Action>
[[nodiscard]] std::string error_of(const Action& action) {
  try {
    action();
  } catch (const std::bad_alloc&) {
    return "there is no memory left for it at this daemon: ask for fewer slots, or give the daemon more memory";
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Strangers can load the control plane, so it gets only the CPU time that this host's lanes and ranks leave. Threads inherit
// the priority: gRPC's too, which `start` starts.
void with_low_priority(const std::function<void()>& start) {
  constexpr int nicer = 10;
  std::exception_ptr failure;
  std::thread([&] {
    try {
      const auto thread = static_cast<id_t>(gettid());
      static_cast<void>(setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + nicer));
      start();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

session::Quota quota_of(const Tenant& tenant) {
  return {tenant.memory_bytes, tenant.jobs, tenant.joins};
}

}  // namespace

// Two kinds of thread: gRPC's, which change the state below under its lock and never wait, and the server's own, which
// carries out the resulting steps. Pending joins hold no thread.
struct Server::Impl final : proto::Aggregator::CallbackService {
  Impl(ServerOptions o, ServerHooks h) : options(std::move(o)), hooks(std::move(h)), aggregator(options.registry) {}

  // Guards all state below, which every rank of every job needs: never wait while holding it.
  class Lock {
   public:
    explicit Lock(Impl& impl) : lock_(impl.mutex) {}
    void wait_until(std::condition_variable& signal, Time deadline) {
      signal.wait_until(lock_, std::chrono::steady_clock::time_point(deadline.time_since_epoch()));
    }

   private:
    std::unique_lock<std::mutex> lock_;
    NoWaiting no_waiting_;
  };

  // ---- the service

  // The caller. Tenant "": the daemon has no tenants.
  struct Principal {
    std::string tenant;
    bool sees_all = true;
    // Whoever has the daemon's own token; every caller where there is none.
    [[nodiscard]] bool operates() const { return tenant.empty(); }
  };

  ServerUnaryReactor* Hello(CallbackServerContext* context, const proto::HelloRequest* message,
                            proto::HelloReply* reply) override {
    return answer(context, "Hello", *message, [&](const Principal&, const std::string& job) {
      control::Hello hello;
      hello.lanes = hooks.lanes();
      hello.instance = instance;
      hello.local_socket = hooks.local_socket;
      if (hooks.groups && !job.empty()) hello.groups = hooks.groups(job);
      if (hooks.pool) std::tie(hello.pool_slots, hello.pool_elements) = hooks.pool();
      hello.same_host = hooks.same_host && hooks.same_host(address_of(*context));
      hello.receive_bytes = options.registry.receive_bytes;
      hello.in_wire = options.switches.in_wire;
      hello.security = hooks.chip ? PacketSecurity::none : options.registry.security;
      hello.chip = hooks.chip;
      write(hello, *reply);
      return grpc::Status::OK;
    });
  }

  ServerUnaryReactor* Heartbeat(CallbackServerContext* context, const proto::Membership* message,
                                proto::HeartbeatReply* reply) override {
    return answer(
        context, "Heartbeat", *message,
        [&](const Principal& caller, const Life& life) {
          session::HeartbeatReply beat;
          {
            const Lock lock(*this);
            beat = aggregator.heartbeat(life.job_epoch, life.rank, life.rank_epoch, caller.tenant, now());
          }
          if (teller && beat.state == session::HeartbeatReply::State::running)
            beat.warning = teller->warning(life.job_epoch);
          write(beat, *reply);
          return grpc::Status::OK;
        },
        true);
  }

  ServerUnaryReactor* Leave(CallbackServerContext* context, const proto::Membership* message, proto::LeaveReply*) override {
    return answer(
        context, "Leave", *message,
        [&](const Principal& caller, const Life& life) {
          {
            const Lock lock(*this);
            aggregator.leave(life.job_epoch, life.rank, life.rank_epoch, caller.tenant, life.farewell, now());
          }
          wake();
          return grpc::Status::OK;
        },
        true);
  }

  ServerUnaryReactor* Join(CallbackServerContext* context, const proto::JoinRequest* message,
                           proto::JoinReply* reply) override {
    const auto caller = authenticate(context, "Join", *message);
    if (!caller) return finish(context, unauthenticated(context));
    const auto join = parse(*message);
    if (!join) return finish(context, senseless(join.why()));
    session::JoinRequest request = join->request;
    request.tenant = caller->tenant;
    auto call = std::make_unique<JoinCall>(*this, host_of(*context), request, reply);
    {
      const Lock lock(*this);
      if (stopping) return finish(context, overloaded("the aggregator is shutting down"));
      std::uint32_t& of_peer = joins_of_peer[call->peer];
      if (of_peer >= options.joins_of_one_peer) {
        return finish(context, overloaded("this host has " + std::to_string(options.joins_of_one_peer) +
                                          " ranks that wait for the rest of their jobs already"));
      }
      ++of_peer;
      call->number = ++last_call;
      calls[call->number] = call.get();
      const Time at = now();
      aggregator.join(call->number, request, at + std::min<Duration>(join->wait, longest_join), at);
    }
    wake();
    return call.release();  // owns itself until OnDone()
  }

  ServerUnaryReactor* Status(CallbackServerContext* context, const proto::StatusRequest* message,
                             proto::StatusReply* reply) override {
    const auto caller = authenticate_person(context, "Status", *message);
    if (!caller) return finish(context, unauthenticated(context));
    return command(context, [this, caller = *caller, reply] {
      write(caller.sees_all ? shared_report() : telemetry::visible_to(caller.tenant, shared_report()), *reply);
      return grpc::Status::OK;
    });
  }

  ServerUnaryReactor* End(CallbackServerContext* context, const proto::NamedJob* message, proto::EndReply*) override {
    return operate(context, "End", *message, [this, by = host_of(*context)](const Principal& caller, session::NamedJob job) {
      if (!caller.operates() && !within(caller, job)) return others_job();
      std::string why;
      {
        const Lock lock(*this);
        why = aggregator.registry().end(job, by, now());
      }
      if (why.empty()) return grpc::Status::OK;
      if (telemetry::has_job(shared_report(), job)) why = "job '" + job.job + "' joined at another daemon: end it there";
      return grpc::Status(StatusCode::FAILED_PRECONDITION, why);
    });
  }

  ServerUnaryReactor* Drain(CallbackServerContext* context, const proto::DrainRequest* message,
                            proto::DrainReply*) override {
    return operate(context, "Drain", *message, [this, by = host_of(*context)](const Principal& caller, bool undo) {
      if (!caller.operates()) {
        return grpc::Status(StatusCode::FAILED_PRECONDITION,
                            "no tenant's token drains a daemon: pass its --daemon-token-file");
      }
      {
        const Lock lock(*this);
        aggregator.registry().set_draining(!undo, now());
      }
      log("an operator at " + by +
          (undo ? " ended the drain: new jobs are admitted"
                : " drains this daemon: no new job is admitted, and those that run go on"));
      return grpc::Status::OK;
    });
  }

  ServerUnaryReactor* Explain(CallbackServerContext* context, const proto::NamedJob* message,
                              proto::ExplainReply* reply) override {
    return operate(context, "Explain", *message, [this, reply](const Principal& caller, session::NamedJob job) {
      if (!caller.sees_all && !within(caller, job)) return others_job();
      look_at_flights();
      std::optional<telemetry::FlightRecord> record;
      {
        const Lock lock(*this);
        record = recorder.find(job);
      }
      if (!record) {
        return grpc::Status(StatusCode::FAILED_PRECONDITION,
                            "no job '" + job.job + "' is here, nor among the latest that ended: `netsum status` lists them");
      }
      reply->set_record_json(telemetry::to_json(*record, origin_at(record->ended.value_or(now()))));
      return grpc::Status::OK;
    });
  }

  ServerUnaryReactor* Install(CallbackServerContext* context, const proto::Installation* message,
                              proto::InstallReply* reply) override {
    return install(context, "Install", *message, static_cast<bool>(hooks.install), reply,
                   [this](const session::Installation& installation, const Caller& from, proto::InstallReply&) {
                     hooks.install(installation, from);
                   });
  }

  ServerUnaryReactor* InstallRing(CallbackServerContext* context, const proto::TreeInstallation* message,
                                  proto::RingView* reply) override {
    return install(context, "InstallRing", *message, static_cast<bool>(hooks.install_ring), reply,
                   [this](const session::TreeInstallation& installation, const Caller& from, proto::RingView& to) {
                     write(hooks.install_ring(installation, from), to);
                   });
  }

  ServerUnaryReactor* Uninstall(CallbackServerContext* context, const proto::Membership* message,
                                proto::LeaveReply*) override {
    const auto caller = authenticate_daemon(context, "Uninstall", *message);
    if (!caller) return finish(context, unauthenticated(context, true));
    const auto epoch = parse_uninstall(*message);
    if (!epoch) return finish(context, senseless(epoch.why()));
    return command(context, [this, caller = *caller, epoch = *epoch] {
      bool mine = false;
      {
        const Lock lock(*this);
        const auto lease = leases.find(epoch);
        mine = lease != leases.end() && lease->second.tenant == caller.tenant;
      }
      if (mine) uninstall(epoch);
      return grpc::Status::OK;
    });
  }

  // ---- authentication, and calls answered at once

  template <class Message>
  [[nodiscard]] std::optional<Principal> authenticate(CallbackServerContext* context, const char* call,
                                                      const Message& message) {
    return prove(context, *tenants_now(), proof_key, call, message);
  }
  // For calls between daemons. Without a daemons' token, as any other call.
  template <class Message>
  [[nodiscard]] std::optional<Principal> authenticate_daemon(CallbackServerContext* context, const char* call,
                                                             const Message& message) {
    if (daemons.empty()) return authenticate(context, call, message);
    return prove(context, daemons, daemon_proof_key, call, message);
  }
  // For people's calls, to which a daemon with tenants takes the daemons' token too.
  template <class Message>
  [[nodiscard]] std::optional<Principal> authenticate_person(CallbackServerContext* context, const char* call,
                                                             const Message& message) {
    if (!daemons.empty()) {
      if (auto daemon = prove(context, daemons, daemon_proof_key, call, message)) return daemon;
    }
    return authenticate(context, call, message);
  }
  // Limits the job to the caller's. False: it is named as another's.
  [[nodiscard]] static bool within(const Principal& caller, session::NamedJob& job) {
    if (job.tenant && *job.tenant != caller.tenant) return false;
    job.tenant = caller.tenant;
    return true;
  }
  [[nodiscard]] static grpc::Status others_job() {
    return {StatusCode::FAILED_PRECONDITION,
            "another tenant's jobs are its own: only the daemon's token (--daemon-token-file) reaches them"};
  }
  template <class Message>
  [[nodiscard]] std::optional<Principal> prove(CallbackServerContext* context, const Tenants& known, const char* key,
                                               const char* call, const Message& message, bool formerly = false) const {
    if (known.empty()) return Principal{};
    const auto proof = context->client_metadata().find(key);
    if (proof == context->client_metadata().end()) return std::nullopt;
    const std::string_view shown(proof->second.data(), proof->second.size());
    const std::string text = message.SerializeAsString();
    const Tenant* const tenant =
        formerly ? known.prove_former(shown, challenge, call, text) : known.prove(shown, challenge, call, text);
    if (tenant == nullptr) return std::nullopt;
    return Principal{tenant->name, tenant->sees_all};
  }
  // A caller's first call has no proof yet, and after a restart of this daemon one of the former challenge: those are no
  // attempts with a wrong token.
  [[nodiscard]] grpc::Status unauthenticated(CallbackServerContext* context, bool of_daemons = false) {
    context->AddTrailingMetadata(challenge_key, challenge);
    const bool alone = of_daemons && !daemons.empty();
    const auto proof = context->client_metadata().find(alone ? daemon_proof_key : proof_key);
    const bool shown = proof != context->client_metadata().end();
    const auto known =
        shown ? (alone ? daemons : *tenants_now()).knows({proof->second.data(), proof->second.size()}) : Tenants::Known::yes;
    if (known != Tenants::Known::yes) {
      {
        const std::lock_guard lock(refusals_mutex);
        ++wrong_tokens;
      }
      log_refusal(std::string("a caller at ") + host_of(*context) + " showed a " +
                  (known == Tenants::Known::formerly ? "revoked" : "wrong") + (alone ? " daemon's token" : " token"));
    }
    if (alone) {
      return {StatusCode::UNAUTHENTICATED,
              "this switch takes jobs from daemons with its own token alone: give both the same --daemon-token-file"};
    }
    if (!shown) {
      return {StatusCode::UNAUTHENTICATED, "this aggregator wants a token: pass --token-file (NETSUM_TOKEN_FILE)"};
    }
    return {StatusCode::UNAUTHENTICATED,
            known == Tenants::Known::formerly
                ? "wrong token: that of --token-file (NETSUM_TOKEN_FILE) was revoked, as it is no longer in the daemon's "
                  "--tenants file"
                : "wrong token: the daemon does not know that of --token-file (NETSUM_TOKEN_FILE)"};
  }

  // Calls what(caller, value) with the parsed message. `in_life`: of a rank's life, whose epochs the caller must know: a
  // token that was revoked since the job began will do, and the job runs on.
  template <class Message, class What>
  ServerUnaryReactor* answer(CallbackServerContext* context, const char* call, const Message& message, const What& what,
                             bool in_life = false) {
    const auto caller = prove(context, *tenants_now(), proof_key, call, message, in_life);
    if (!caller) return finish(context, unauthenticated(context));
    const auto value = parse(message);
    if (!value) return finish(context, senseless(value.why()));
    return finish(context, what(*caller, *value));
  }

  // ---- calls that wait for the control plane's own thread

  struct JoinCall final : ServerUnaryReactor {
    JoinCall(Impl& i, std::string p, const session::JoinRequest& request, proto::JoinReply* r)
        : impl(i), peer(std::move(p)), job(request.job), rank(request.rank), world_size(request.world_size), reply(r) {}
    void OnCancel() override { impl.give_up(*this); }
    void OnDone() override { delete this; }

    Impl& impl;
    const std::string peer, job;
    const std::uint32_t rank, world_size;
    proto::JoinReply* const reply;
    session::Aggregator::Call number = 0;
  };

  // Under the lock: this call is answered next, or was cancelled.
  void forget(const JoinCall& call) {
    calls.erase(call.number);
    if (const auto of_peer = joins_of_peer.find(call.peer); --of_peer->second == 0) joins_of_peer.erase(of_peer);
  }

  void give_up(JoinCall& call) {
    {
      const Lock lock(*this);
      if (!aggregator.cancel(call.number, now())) return;  // answered just now
      forget(call);
    }
    wake();
    call.Finish({StatusCode::CANCELLED, "the rank gave up"});
  }

  struct Command {
    ServerUnaryReactor* reactor = nullptr;
    std::function<grpc::Status()> carry_out;
  };
  ServerUnaryReactor* command(CallbackServerContext* context, std::function<grpc::Status()> what) {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    bool taken = false;
    {
      const Lock lock(*this);
      taken = !stopping && commands.size() < most_commands;
      if (taken) commands.push_back({reactor, std::move(what)});
    }
    if (taken) {
      wake();
    } else {
      reactor->Finish(busy());
    }
    return reactor;
  }

  // Calls what(caller, value) on the control plane's own thread.
  template <class Message, class What>
  ServerUnaryReactor* operate(CallbackServerContext* context, const char* call, const Message& message, What what) {
    const auto caller = authenticate_person(context, call, message);
    if (!caller) return finish(context, unauthenticated(context));
    const auto value = parse(message);
    if (!value) return finish(context, senseless(value.why()));
    return command(context, [caller = *caller, value = *value, what = std::move(what)] { return what(caller, value); });
  }

  template <class Message, class Reply, class How>
  ServerUnaryReactor* install(CallbackServerContext* context, const char* call, const Message& message, bool is_switch,
                              Reply* reply, const How& how) {
    const auto caller = authenticate_daemon(context, call, message);
    if (!caller) return finish(context, unauthenticated(context, true));
    if (!is_switch) return finish(context, {StatusCode::FAILED_PRECONDITION, "this is no switch, but a parameter server"});
    auto installation = parse(message);
    if (!installation) return finish(context, senseless(installation.why()));
    reply->set_instance(instance);
    const Caller from{address_of(*context), !daemons.empty()};
    return command(context, [this, caller = *caller, from, installation = std::move(*installation), how, reply] {
      return install_with_lease(caller, installation, [&] { how(installation, from, *reply); });
    });
  }

  [[nodiscard]] static std::uint64_t epoch_of(const session::Installation& installation) { return installation.job_epoch; }
  [[nodiscard]] static std::uint64_t epoch_of(const session::TreeInstallation& installation) {
    return installation.start.admission.job_epoch;
  }

  // An installation's memory, and its number in the account.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> cost_of(const session::Installation&) const {
    return {0, hooks.pool_bytes};  // the pool, which all ATP jobs share
  }
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> cost_of(const session::TreeInstallation& installation) const {
    const bool rings = installation.start.protocol == session::netreduce_rules().name;
    return {epoch_of(installation),
            rings ? session::memory_bytes(installation) : session::switchml_memory_bytes(installation)};
  }

  template <class Installation, class How>
  grpc::Status install_with_lease(const Principal& caller, const Installation& installation, const How& how) {
    const std::uint64_t epoch = epoch_of(installation);
    const auto [holder, bytes] = cost_of(installation);
    bool charged = false;
    {
      const Lock lock(*this);
      const auto lease = leases.find(epoch);
      if (lease != leases.end() && lease->second.tenant != caller.tenant)
        return refused_installation("the job is another's");
      if (lease == leases.end() && leases.size() >= most_leases) {
        return overloaded("this switch serves " + std::to_string(most_leases) + " jobs already");
      }
      if (lease == leases.end() && aggregator.registry().draining()) {
        return refused_installation("an operator drains it for maintenance, so that no new job begins there");
      }
      if (bytes != 0 && aggregator.registry().memory().of(holder) == 0) {
        const std::uint64_t quota = holder == 0 ? UINT64_MAX : aggregator.registry().quota_of(caller.tenant).memory_bytes;
        const std::string owner = holder == 0 ? std::string() : caller.tenant;
        if (const std::string error = aggregator.registry().memory().check(owner, bytes, quota); !error.empty()) {
          return refused_installation(error);
        }
        aggregator.registry().memory().charge(holder, owner, bytes);
        charged = true;
      }
    }
    const std::string error = error_of(how);
    const Lock lock(*this);
    if (!error.empty()) {
      if (charged) aggregator.registry().memory().release(holder);
      return refused_installation(error);
    }
    leases[epoch] = {now() + session::installation_lease, caller.tenant};
    return grpc::Status::OK;
  }
  [[nodiscard]] static grpc::Status refused_installation(const std::string& why) {
    return {StatusCode::FAILED_PRECONDITION, why};
  }

  void uninstall(std::uint64_t epoch) {
    report_errors([&] { hooks.uninstall(epoch); });
    const Lock lock(*this);
    leases.erase(epoch);
    aggregator.registry().memory().release(epoch);
  }

  // ---- the control plane's own thread

  // Changes made under the lock, to be carried out without it.
  struct Due {
    session::Aggregator::Step step;
    std::vector<std::uint64_t> leases;  // that have expired
    std::deque<Command> commands;
    std::vector<std::pair<JoinCall*, grpc::Status>> answers;
    std::vector<std::uint64_t> watched;   // to look at
    std::vector<session::JobEvent> ends;  // of jobs
    bool look = false;                    // for the flight recorder
    bool pulse = false;                   // alive() asks
    std::vector<std::string> refusals;    // for the log
    [[nodiscard]] bool empty() const {
      return step.empty() && leases.empty() && commands.empty() && watched.empty() && ends.empty() && !look && !pulse &&
             refusals.empty();
    }
  };

  void run() {
    while (true) {
      Due due;
      {
        Lock lock(*this);
        collect(due);
        if (due.empty()) {
          if (stopping) return;
          if (!woken) lock.wait_until(changed, next_wake());
          woken = false;
          continue;
        }
      }
      carry_out(due);
    }
  }

  void collect(Due& due) {
    const Time at = now();
    if (at >= aggregator.next_timeout()) aggregator.on_timer(at);
    due.step = aggregator.step(at, [this](std::uint64_t epoch) { return !teller || teller->ready(epoch); });
    for (session::Aggregator::Answer& answer : due.step.answers) {
      JoinCall& call = *calls.at(answer.call);
      note_refusal(answer, call, due);
      due.answers.emplace_back(&call, status_of(answer, call));
      forget(call);
    }
    for (const auto& [epoch, lease] : leases) {
      if (lease.until <= at || stopping) due.leases.push_back(epoch);
    }
    due.commands.swap(commands);
    due.pulse = pulse_asked.has_value();
    for (session::JobEvent& event : std::exchange(due.step.events, {})) {
      recorder.record(event);
      if (is_end(event.kind)) due.ends.push_back(std::move(event));
    }
    if (at >= next_flight_look && !stopping) {
      due.look = recorder.any_running();
      next_flight_look = at + telemetry::FlightRecorder::look_interval;
    }
    if (at < next_look || stopping) return;
    next_look = at + tick;
    due.watched = aggregator.watched();
  }

  // What ended a whole job is in the log already.
  void note_refusal(const session::Aggregator::Answer& answer, const JoinCall& call, Due& due) {
    if (!answer.late && answer.outcome.refusal == session::Refusal::none) return;
    {
      const std::lock_guard lock(refusals_mutex);
      ++joins_refused;
    }
    const std::string why = answer.late ? "the job did not become complete in time" : answer.outcome.reason;
    if (std::any_of(due.step.events.begin(), due.step.events.end(),
                    [&](const session::JobEvent& event) { return is_end(event.kind) && event.what == why; })) {
      return;
    }
    due.refusals.push_back("job '" + call.job + "': rank " + std::to_string(call.rank) + " at " + call.peer +
                           " was refused: " + why);
  }

  // The status of a join's answer. Also writes the reply, if admitted.
  [[nodiscard]] static grpc::Status status_of(const session::Aggregator::Answer& answer, const JoinCall& call) {
    if (answer.late && answer.missing.empty()) {
      return {StatusCode::DEADLINE_EXCEEDED,
              "job '" + call.job + "': rank " + std::to_string(call.rank) + "'s former process has not ended in time"};
    }
    if (answer.late) {
      return {StatusCode::DEADLINE_EXCEEDED, "job '" + call.job + "': ranks " + list(answer.missing) + " of " +
                                                 std::to_string(call.world_size) + " have not joined in time"};
    }
    if (answer.outcome.refusal != session::Refusal::none) return refused(answer.outcome);
    write(*answer.outcome.admission, *call.reply);
    return grpc::Status::OK;
  }

  [[nodiscard]] Time next_wake() const {
    Time next = aggregator.next_timeout();
    for (const auto& [epoch, lease] : leases) next = std::min(next, lease.until);
    if (!aggregator.watched().empty()) next = std::min(next, next_look);
    if (recorder.any_running()) next = std::min(next, next_flight_look);
    return std::min(next, now() + std::chrono::hours(1));  // a condition variable cannot wait for ever
  }

  void carry_out(Due& due) {
    // A failed job's last state is read before its lanes forget it.
    const auto failed = [](const session::JobEvent& end) { return end.kind == session::JobEvent::Kind::failed; };
    if (due.look || std::any_of(due.ends.begin(), due.ends.end(), failed)) look_at_flights();
    for (const session::StopJob& stop : due.step.changes.stops) {
      report_errors([&] { hooks.stop_job(stop); });
      if (teller) teller->remove(stop.job_epoch);
      const Lock lock(*this);
      aggregator.on_stopped(stop.job_epoch);
    }
    for (const session::StartJob& start : due.step.changes.starts) begin(start);
    for (const session::JobEvent& end : due.ends) {
      log_of(end.tenant,
             "job '" + end.job + "' " + (end.kind == session::JobEvent::Kind::ended ? "ended" : "failed: " + end.what));
    }
    keep_records();
    for (const std::uint64_t epoch : due.leases) uninstall(epoch);
    latest.reset();
    for (Command& command : due.commands) {
      grpc::Status status;
      const std::string error = error_of([&] { status = command.carry_out(); });
      command.reactor->Finish(error.empty() ? status : grpc::Status(StatusCode::INTERNAL, error));
    }
    for (const auto& [call, status] : due.answers) call->Finish(status);
    for (const std::uint64_t epoch : due.watched) look_at(epoch);
    for (const std::string& line : due.refusals) log_refusal(line);
    if (!due.pulse) return;
    if (hooks.reach_lanes) hooks.reach_lanes();
    const Lock lock(*this);
    pulse_asked.reset();
  }

  void begin(const session::StartJob& start) {
    const std::uint64_t epoch = start.admission.job_epoch;
    const std::string error = error_of([&] { hooks.start_job(start); });
    {
      const Lock lock(*this);
      if (!error.empty()) {
        aggregator.on_start_failed(epoch, error, now());
        return;
      }
      aggregator.on_started(start);
    }
    if (teller) teller->add(start);
    log_of(start.tenant, "job '" + start.job + "': " + std::to_string(start.endpoints.size()) + " ranks, " +
                             std::to_string(start.admission.packet_elements) + " elements per packet, " +
                             std::to_string(start.admission.slots) + " slots per lane" +
                             (start.admission.local ? ", in shared memory" : "") +
                             (start.admission.security == PacketSecurity::none
                                  ? ""
                                  : std::string(", packets protected by ") + to_string(start.admission.security)));
    if (!start.warning.empty()) log_of(start.tenant, "warning: job '" + start.job + "': " + start.warning);
  }

  void look_at(std::uint64_t epoch) {
    session::JobView view;
    report_errors([&] {
      if (hooks.look) view = hooks.look(epoch);
    });
    if (teller) view = teller->refined(epoch, std::move(view));
    const Lock lock(*this);
    aggregator.on_view(epoch, std::move(view), now());
  }

  // Proofs travel to the page without TLS. One that is overheard opens it for a minute at most.
  [[nodiscard]] std::string page_challenge(int intervals_ago) const {
    constexpr Duration interval = std::chrono::seconds(30);
    return challenge + "." + std::to_string(now().time_since_epoch() / interval - intervals_ago);
  }

  // ---- the flight recorder

  void look_at_flights() {
    report_errors([&] {
      const telemetry::Report seen = report(0);
      version = seen.version;
      const Lock lock(*this);
      for (const telemetry::JobReport& job : seen.jobs) recorder.look(job, now());
    });
  }

  [[nodiscard]] telemetry::FlightFileOrigin origin_at(Time at) const {
    const auto ago = std::chrono::duration_cast<std::chrono::system_clock::duration>(now() - at);
    return {version, options.switches.own, address, std::chrono::system_clock::now() - ago, at};
  }

  void keep_records() {
    std::vector<telemetry::FlightRecord> failures;
    {
      const Lock lock(*this);
      failures = recorder.take_failures();
    }
    if (!folder) return;
    const telemetry::FlightFileOrigin origin = origin_at(now());
    for (const telemetry::FlightRecord& record : failures) {
      if (!may_say_more(record.tenant)) continue;
      report_errors(
          [&] { log("job '" + record.job + "': `netsum explain " + folder->write(record, origin) + "` says more"); });
    }
  }

  template <class Action>
  void report_errors(const Action& action) const {
    if (const std::string error = error_of(action); !error.empty()) log("warning: " + error);
  }
  // Of jobs of one tenant, so that they push nobody else's out of logs and records. Without tenants all jobs are trusted.
  [[nodiscard]] bool may_say_more(const std::string& tenant) {
    if (tenant.empty()) return true;
    std::uint32_t left_out = 0;
    bool may = false;
    {
      const std::lock_guard lock(log_mutex);
      Said& said = said_of[tenant];
      if (now() - said.since >= said_interval) left_out = std::exchange(said, {now(), 0, 0}).left_out;
      may = said.lines < most_lines;
      ++(may ? said.lines : said.left_out);
    }
    if (left_out != 0)
      log("tenant '" + tenant + "': " + std::to_string(left_out) +
          " log lines and flight records were dropped: its jobs write too many");
    return may;
  }
  void log_of(const std::string& tenant, const std::string& line) {
    if (may_say_more(tenant)) log(line);
  }
  void log(const std::string& line) const {
    check_may_wait("the log");
    const std::lock_guard lock(log_mutex);
    if (hooks.log) hooks.log(line);
  }
  // Strangers cause these lines: no more than some in a while.
  void log_refusal(const std::string& line) {
    std::size_t unlogged = 0;
    {
      const std::lock_guard lock(refusals_mutex);
      if (now() >= refusals_since + refusals_interval) {
        refusals_since = now();
        refusals_logged = 0;
        unlogged = std::exchange(refusals_unlogged, 0);
      }
      if (refusals_logged == most_refusals) {
        ++refusals_unlogged;
        return;
      }
      ++refusals_logged;
    }
    if (unlogged != 0) log(std::to_string(unlogged) + " more calls were refused and not logged");
    log(line);
  }
  void wake() {
    {
      const std::lock_guard lock(mutex);
      woken = true;
    }
    changed.notify_one();
  }

  void start_telling() {
    SwitchTellerEvents events;
    events.ready = [this](std::uint64_t) { wake(); };
    events.failed = [this](std::uint64_t job_epoch, const std::string& why) {
      {
        const Lock lock(*this);
        aggregator.registry().fail(job_epoch, why, now());
      }
      wake();
    };
    events.pool = [this](const std::string& a_switch, std::uint32_t slots) {
      const Lock lock(*this);
      aggregator.registry().on_pool(a_switch, slots);
    };
    events.log = [this](const std::string& tenant, const std::string& line) { log_of(tenant, line); };
    teller = std::make_unique<SwitchTeller>(options.switches, hooks.switches, std::move(events));
  }

  // ---- reports

  // Without events also without hosts: for the flight recorder, which knows them.
  [[nodiscard]] telemetry::Report report(std::size_t events = events_shown) {
    check_may_wait("the data plane's counters");
    telemetry::Report out;
    {
      const Lock lock(*this);
      out.slots = options.registry.slots;
      out.slots_free = aggregator.registry().slots_free();
      out.memory_bytes = aggregator.registry().memory().limit();
      out.memory_used = aggregator.registry().memory().used();
      const Time at = now();
      for (auto& job : aggregator.registry().jobs()) {
        telemetry::JobReport entry{.job = std::move(job)};
        if (events != 0) {
          for (telemetry::FlightEvent& event : recorder.latest(entry.job, events)) {
            const double age = std::chrono::duration<double>(at - event.at).count();
            entry.events.push_back({age, std::move(event.kind), event.rank, std::move(event.what)});
          }
        }
        entry.stalled_seconds = std::chrono::duration<double>(recorder.stalled_for(entry.job, at)).count();
        out.jobs.push_back(std::move(entry));
      }
      for (const auto& [name, value] : recorder.failures()) out.counters.add(name, value);
      out.draining = aggregator.registry().draining();
      if (events != 0) out.ended = recorder.ended(at);
    }
    {
      const std::lock_guard lock(refusals_mutex);
      out.counters.add("joins_refused", joins_refused);
      out.counters.add("wrong_tokens", wrong_tokens);
    }
    if (events != 0) {
      for (telemetry::JobReport& job : out.jobs) telemetry::locate(job);
    }
    std::erase_if(out.ended, [&](const telemetry::EndedJob& ended) {
      return ended.job_epoch != 0 && std::any_of(out.jobs.begin(), out.jobs.end(), [&](const telemetry::JobReport& job) {
               return job.job.job_epoch == ended.job_epoch;
             });
    });
    out.daemon = options.switches.own;
    out.address = address;
    out.certificate_until = std::chrono::duration<double>(certificate_until.load().time_since_epoch()).count();
    out.lanes = options.registry.lanes;
    out.uptime_seconds = std::chrono::duration<double>(now() - started).count();
    if (hooks.fill_report) hooks.fill_report(out);
    return out;
  }
  // On the control plane's own thread: one report for all calls that have asked meanwhile.
  [[nodiscard]] const telemetry::Report& shared_report() {
    if (!latest) latest = report();
    return *latest;
  }

  // ---- tenants

  [[nodiscard]] std::shared_ptr<const Tenants> tenants_now() {
    const std::lock_guard lock(tenants_mutex);
    return tenants;
  }
  void set_tenants(const std::vector<Tenant>& list) {
    std::map<std::string, session::Quota> quotas;
    for (const Tenant& tenant : list) quotas[tenant.name] = quota_of(tenant);
    Tenants fresh(list);
    fresh.succeed(*tenants_now());
    std::shared_ptr<const Tenants> known = std::make_shared<const Tenants>(std::move(fresh));
    {
      const Lock lock(*this);
      aggregator.registry().set_quotas(std::move(quotas));
    }
    const std::lock_guard lock(tenants_mutex);
    tenants = std::move(known);
  }

  // ---- the certificate

  // Of connections from now on.
  void take_certificate(const DaemonCertificate& certificate) {
    tls->set(certificate);
    certificate_until = certificate.until;
    const std::string warning = expiry_warning(certificate, options.tls_cert, std::chrono::system_clock::now());
    if (!warning.empty()) log(warning);
  }
  void reload_certificate() {
    take_certificate(read_certificate(options.tls_cert, options.tls_key, std::chrono::system_clock::now()));
  }

  ServerOptions options;
  ServerHooks hooks;
  std::shared_ptr<ReloadedCredentials> tls;  // null: none
  std::atomic<std::chrono::system_clock::time_point> certificate_until{};
  std::mutex mutex;  // for all members up to `stopping`
  std::condition_variable changed;
  bool woken = false;
  session::Aggregator aggregator;
  session::Aggregator::Call last_call = 0;
  std::map<session::Aggregator::Call, JoinCall*> calls;  // pending joins
  std::map<std::string, std::uint32_t> joins_of_peer;
  struct Lease {
    Time until{};
    std::string tenant;
  };
  std::map<std::uint64_t, Lease> leases;  // of jobs installed here
  std::deque<Command> commands;
  Time next_look{}, next_flight_look{};
  telemetry::FlightRecorder recorder;
  std::optional<Time> pulse_asked;  // and not answered
  bool stopping = false;

  std::mutex refusals_mutex;  // for the five below
  std::uint64_t joins_refused = 0, wrong_tokens = 0;
  std::size_t refusals_logged = 0, refusals_unlogged = 0;  // since
  Time refusals_since{};

  std::mutex tenants_mutex;
  std::shared_ptr<const Tenants> tenants = std::make_shared<const Tenants>();
  Tenants daemons;  // that may tell this one of jobs; none: any caller that may join
  std::string challenge = new_challenge();

  mutable std::mutex log_mutex;
  struct Said {
    Time since{};
    std::uint32_t lines = 0, left_out = 0;
  };
  static constexpr Duration said_interval = std::chrono::seconds(10);
  static constexpr std::uint32_t most_lines = 100;
  std::map<std::string, Said> said_of;  // by tenant; with log_mutex
  // Of the control plane's own thread.
  std::optional<telemetry::Report> latest;
  std::string version;  // as reports say
  std::optional<telemetry::FlightFolder> folder;

  std::uint64_t instance = transport::random_number();
  Time started = now();
  std::string address;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<SwitchTeller> teller;  // null: there are no switches below
  std::thread thread;
};

Server::Server(ServerOptions options, ServerHooks hooks) {
  if (!options.registry.random) options.registry.random = &transport::random_number;
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    throw Error(ErrorCode::bad_argument, "--tls-cert and --tls-key go together");
  }
  std::shared_ptr<ReloadedCredentials> tls;
  DaemonCertificate certificate;
  if (!options.tls_cert.empty()) {
    certificate = read_certificate(options.tls_cert, options.tls_key, std::chrono::system_clock::now());
    credentials = tls = std::make_shared<ReloadedCredentials>(certificate);
  }
  if (options.tls_cert.empty()) {  // no key ever travels in clear
    options.registry.keys = options.registry.keys_below = false;
    options.registry.security = PacketSecurity::none;
  }
  if (options.switches.tls_ca.empty()) options.registry.keys_below = false;
  if (!options.token.empty() && !options.tenants.empty()) {
    throw Error(ErrorCode::bad_argument, "a daemon has either a token or tenants with tokens of their own, not both");
  }
  if (options.registry.heartbeat_timeout < 2 * session::beat_interval) {
    throw Error(ErrorCode::bad_argument, "the heartbeat timeout must be at least " +
                                             session::in_seconds(2 * session::beat_interval) +
                                             ": ranks send a heartbeat each " + session::in_seconds(session::beat_interval));
  }
  impl_ = std::make_unique<Impl>(std::move(options), std::move(hooks));
  Impl* const impl = impl_.get();
  impl->tls = std::move(tls);
  if (impl->tls) impl->take_certificate(certificate);
  if (!impl->options.flight_records.empty()) impl->folder.emplace(impl->options.flight_records);
  if (!impl->options.token.empty()) impl->tenants = std::make_shared<const Tenants>(Tenants::one(impl->options.token));
  if (!impl->options.daemon_token.empty()) impl->daemons = Tenants::one(impl->options.daemon_token);
  if (!impl->options.tenants.empty()) impl->set_tenants(impl->options.tenants);
  const std::string& listen = impl->options.listen;
  impl->listener =
      std::make_unique<Listener>(listen, impl->options.connections, [impl](const std::string& line) { impl->log(line); });
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, handshake_ms);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, idle_connection_ms);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, calls_of_one_connection);
  impl->acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.RegisterService(impl);
  with_low_priority([&] {
    impl->server = builder.BuildAndStart();
    if (!impl->server) throw Error(ErrorCode::internal, "gRPC cannot serve " + listen);
    impl->address = listen.substr(0, listen.rfind(':') + 1) + std::to_string(impl->listener->port());
    if (impl->hooks.switches.describe) impl->start_telling();
    impl->thread = std::thread([impl] { impl->run(); });
    impl->listener->start([impl](int socket) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = socket;
      impl->acceptor->HandleNewConnection(&connection);
    });
  });
}

Server::~Server() {
  impl_->listener.reset();
  {
    const Impl::Lock lock(*impl_);
    impl_->stopping = true;
    impl_->aggregator.shut_down(now());
  }
  impl_->wake();
  impl_->thread.join();
  if (impl_->teller) impl_->teller->stop();
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  impl_->server->Wait();
}

bool Server::alive() {
  const Time at = now();
  {
    const Impl::Lock lock(*impl_);
    if (impl_->pulse_asked) return at - *impl_->pulse_asked < impl_->options.hangs_after;
    impl_->pulse_asked = at;
  }
  impl_->wake();
  return true;
}

std::string Server::address() const {
  return impl_->address;
}
void Server::lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how) {
  {
    const Impl::Lock lock(*impl_);
    impl_->aggregator.registry().lose(job_epoch, rank, how, now());
  }
  impl_->wake();
}
telemetry::Report Server::report() {
  return impl_->report();
}
telemetry::PageAdmittance Server::page_admittance() {
  if (impl_->options.tenants.empty()) return {};
  telemetry::PageAdmittance admittance;
  admittance.viewer = [impl = impl_.get()](std::string_view proof) -> telemetry::PageAdmittance::Viewer {
    const auto tenants = impl->tenants_now();
    for (const int ago : {0, 1}) {
      const Tenant* const tenant = tenants->prove(proof, impl->page_challenge(ago), "Page", "");
      if (tenant != nullptr) return {tenant->name, tenant->sees_all};
    }
    return {"", false};
  };
  admittance.challenge = [impl = impl_.get()] { return impl->page_challenge(0); };
  return admittance;
}
void Server::set_tenants(std::vector<Tenant> tenants) {
  impl_->set_tenants(tenants);
}
void Server::reload_certificate() {
  if (impl_->tls) impl_->reload_certificate();
}

}  // namespace netsum::control
