#include "control/server.h"

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
#include <utility>

#include "base/waiting.h"
#include "control/border.h"
#include "control/callers.h"
#include "control/certificate.h"
#include "control/channel_server.h"
#include "control/clock.h"
#include "control/flights.h"
#include "control/journal.h"
#include "control/leases.h"
#include "control/reports.h"
#include "control/tls.h"
#include "session/installations.h"
#include "session/rendezvous.h"
#include "session/supervisor.h"
#include "session/words.h"
#include "telemetry/drop_log.h"
#include "telemetry/flight_file.h"
#include "transport/system/random.h"

namespace netsum::control {
namespace {

constexpr Duration tick = std::chrono::milliseconds(100);  // between two looks at watched jobs
constexpr Duration longest_join = std::chrono::minutes(30);
constexpr std::size_t most_commands = 1024;  // waiting for the control plane's thread

std::string list(const RankSet& set) {
  std::string text;
  for (std::uint32_t rank = 0; rank < max_world_size; ++rank) {
    if (set.contains(rank)) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

std::string host_in(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

template <class Message>
Answer with(const Message& message) {
  return {std::nullopt, write(message)};
}
Answer without(ErrorKind kind, const std::string& why) {
  return {Failure{kind, why}};
}
Answer refused(const session::JoinOutcome& outcome) {
  if (outcome.refusal == session::Refusal::excluded) return without(ErrorKind::excluded, outcome.reason);
  return without(ErrorKind::refused, outcome.reason + " (" + session::to_string(outcome.refusal) + ")");
}
// Unlike what is refused, this may succeed a moment later, also at the daemon that is started in place of this one.
Answer busy() {
  return without(ErrorKind::busy, "this daemon is busy, or shutting down: try again later");
}

// The error in one line, if memory ran out or the data plane refused.
template <class Action>
[[nodiscard]] std::string error_of(const Action& action) {
  try {
    action();
  } catch (const std::bad_alloc&) {
    return "this daemon has no memory left for the job: ask for fewer slots, or give the daemon more memory";
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Strangers can load the control plane, so it gets only the CPU time that this host's lanes and ranks leave. Threads inherit
// the priority.
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

}  // namespace

// The connections' thread changes the state below under its lock and never waits; the server's own thread carries out the
// resulting steps. Pending joins hold no thread.
struct Server::Impl {
  using Request = ChannelServer::Request;
  using Connection = ChannelServer::Connection;

  Impl(ServerOptions o, ServerHooks h)
      : options(std::move(o)),
        hooks(std::move(h)),
        journal(hooks.log),
        callers(options.token, options.daemon_token, {}, journal),
        flights(journal),
        reports(options, hooks, journal, flights),
        aggregator(options.registry),
        leases(aggregator.registry()) {}

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

  // ---- requests, on the connections' thread. Nothing: the answer follows.

  std::optional<Answer> on_request(const Request& request) {
    switch (request.kind) {
      case Kind::hello:
        return answered<HelloRequest>(request, [&](const HelloRequest& asked) { return on_hello(request, asked); });
      case Kind::join:
        return answered<Join>(request, [&](const Join& join) { return on_join(request, join); });
      case Kind::heartbeat:
        return answered<Beat>(
            request, [&](const Beat& beat) { return on_beat(request, beat); }, true);
      case Kind::leave:
        return answered<Life>(
            request, [&](const Life& life) { return on_leave(request, life); }, true);
      case Kind::status:
        return of_person<StatusRequest>(request, [&](const StatusRequest&) { return on_status(request); });
      case Kind::install:
        return of_daemon<session::SwitchMessage>(
            request, [&](const session::SwitchMessage& message) { return on_install(request, message); });
      case Kind::end:
        return of_person<session::NamedJob>(request, [&](session::NamedJob job) { return on_end(request, std::move(job)); });
      case Kind::drain:
        return of_person<Drain>(request, [&](const Drain& drain) { return on_drain(request, drain.undo); });
      case Kind::explain:
        return of_person<session::NamedJob>(request,
                                            [&](session::NamedJob job) { return on_explain(request, std::move(job)); });
      case Kind::uninstall:
        return of_daemon<Uninstall>(request, [&](const Uninstall& asked) { return on_uninstall(request, asked.job_epoch); });
      default:
        return without(ErrorKind::invalid, "this daemon does not know this request");
    }
  }

  // Of people, to whom a daemon with tenants also listens if they have the daemons' token.
  template <class Message, class What>
  std::optional<Answer> of_person(const Request& request, const What& what) {
    return answered<Message>(request, what, request.principal.daemon);
  }
  // `in_life`: of a rank's life, whose epochs the caller must know: a token that was revoked since the job began will do,
  // and the job runs on.
  template <class Message, class What>
  std::optional<Answer> answered(const Request& request, const What& what, bool in_life = false) {
    if (!in_life && request.principal.number.empty() && callers.must_have_token()) {
      return without(ErrorKind::unauthenticated, Callers::no_token);
    }
    if (!in_life && callers.is_revoked(request.principal)) {
      journal.wrong_token(host_in(request.address), "showed a revoked token");
      return without(ErrorKind::unauthenticated, Callers::revoked);
    }
    const auto message = parse<Message>(request.payload);
    if (!message) return without(ErrorKind::invalid, message.why());
    return what(*message);
  }
  // Between daemons. Without a daemons' token, as any other request.
  template <class Message, class What>
  std::optional<Answer> of_daemon(const Request& request, const What& what) {
    if (!callers.daemons_have_token()) return answered<Message>(request, what);
    if (!request.principal.daemon) {
      return without(ErrorKind::unauthenticated, Callers::no_daemon);
    }
    return answered<Message>(request, what, true);
  }

  Answer on_hello(const Request& request, const HelloRequest& asked) {
    control::Hello hello;
    hello.lanes = hooks.lanes();
    hello.threads = options.threads;
    hello.instance = instance;
    hello.local_socket = hooks.local_socket;
    if (hooks.groups && !asked.job.empty()) hello.groups = hooks.groups(asked.job);
    hello.is_switch = static_cast<bool>(hooks.install);
    hello.same_host = hooks.same_host && hooks.same_host(request.address);
    hello.receive_bytes = options.registry.receive_bytes;
    hello.in_wire = options.switches.in_wire;
    hello.security = hooks.said_security.value_or(options.registry.security);
    hello.profiles = hooks.profiles;
    return with(hello);
  }

  Answer on_beat(const Request& request, const Beat& beat) {
    const Lock lock(*this);
    const Life& life = beat.life;
    life_of[request.connection] = {life.job_epoch, life.rank, life.rank_epoch};
    session::HeartbeatReply reply = aggregator.heartbeat(life.job_epoch, life.rank, life.rank_epoch,
                                                         request.principal.tenant, now(), beat.call, beat.seen, beat.pace);
    if (teller && reply.state == session::HeartbeatReply::State::running) reply.warning = teller->warning(life.job_epoch);
    return with(reply);
  }

  Answer on_leave(const Request& request, const Life& life) {
    {
      const Lock lock(*this);
      life_of.erase(request.connection);
      aggregator.leave(life.job_epoch, life.rank, life.rank_epoch, request.principal.tenant, life.farewell, now());
    }
    wake();
    return with(Done{});
  }

  std::optional<Answer> on_join(const Request& request, const Join& join) {
    session::JoinRequest asked = join.request;
    asked.tenant = request.principal.tenant;
    JoinCall call{request.connection, host_in(request.address), asked.job, asked.rank, asked.world_size};
    {
      const Lock lock(*this);
      if (stopping) return without(ErrorKind::overloaded, "the aggregator is shutting down");
      std::uint32_t& of_peer = joins_of_peer[call.peer];
      if (of_peer >= options.joins_of_one_peer) {
        return without(ErrorKind::overloaded, "this host has " + std::to_string(options.joins_of_one_peer) +
                                                  " ranks that wait for other ranks of their jobs, its maximum");
      }
      ++of_peer;
      const session::Rendezvous::Call number = ++last_call;
      call_of[call.connection] = number;
      calls.emplace(number, std::move(call));
      const Time at = now();
      aggregator.join(number, asked, at + std::min<Duration>(join.wait, longest_join), at);
    }
    wake();
    return std::nullopt;
  }

  std::optional<Answer> on_status(const Request& request) {
    return command(request, [this, tenant = request.principal.tenant, sees_all = callers.sees_all(request.principal)] {
      return Answer{std::nullopt, write_report(sees_all ? shared_report() : telemetry::visible_to(tenant, shared_report()))};
    });
  }

  // Has the daemon's own token, or there is none to have.
  [[nodiscard]] static bool operates(const Principal& principal) { return principal.daemon || principal.tenant.empty(); }
  // Limits the job to the caller's. False: it is named as another's.
  [[nodiscard]] static bool within(const Principal& principal, session::NamedJob& job) {
    if (job.tenant && *job.tenant != principal.tenant) return false;
    job.tenant = principal.tenant;
    return true;
  }
  [[nodiscard]] static Answer others_job() {
    return without(ErrorKind::refused,
                   "this job belongs to another tenant: only the daemon's token (--daemon-token-file) gives access to it");
  }

  std::optional<Answer> on_end(const Request& request, session::NamedJob job) {
    if (!operates(request.principal) && !within(request.principal, job)) return others_job();
    return command(request, [this, by = host_in(request.address), job = std::move(job)] {
      std::string why;
      {
        const Lock lock(*this);
        why = aggregator.registry().end(job, by, now());
      }
      if (why.empty()) return with(Done{});
      if (telemetry::has_job(shared_report(), job)) why = "job '" + job.job + "' joined at another daemon: end it there";
      return without(ErrorKind::refused, why);
    });
  }

  std::optional<Answer> on_drain(const Request& request, bool undo) {
    if (!operates(request.principal)) {
      return without(ErrorKind::refused, "a tenant's token cannot drain a daemon: pass --daemon-token-file");
    }
    return command(request, [this, by = host_in(request.address), undo] {
      {
        const Lock lock(*this);
        aggregator.registry().set_draining(!undo, now());
      }
      journal.log("an operator at " + by +
                  (undo ? " ended the drain: new jobs are admitted"
                        : " drains this daemon: no new job is admitted, and running jobs continue"));
      return with(Done{});
    });
  }

  std::optional<Answer> on_explain(const Request& request, session::NamedJob job) {
    if (!callers.sees_all(request.principal) && !within(request.principal, job)) return others_job();
    return command(request, [this, job = std::move(job)] {
      look_at_flights();
      const auto record = flights.find(job);
      if (!record) {
        return without(ErrorKind::refused, "this daemon has no job '" + job.job +
                                               "', running or recently ended: `netsum status` lists its jobs");
      }
      return with(FlightRecord{telemetry::to_json(*record, origin_at(record->ended.value_or(now())))});
    });
  }

  std::optional<Answer> on_uninstall(const Request& request, std::uint64_t epoch) {
    return command(request, [this, tenant = request.principal.tenant, epoch] {
      bool mine = false;
      {
        const Lock lock(*this);
        mine = leases.is_of(tenant, epoch);
      }
      if (mine) uninstall(epoch);
      return with(Done{});
    });
  }

  // ---- requests that wait for the control plane's own thread

  struct JoinCall {
    Connection connection = 0;
    std::string peer, job;
    std::uint32_t rank = 0, world_size = 0;
  };

  // A rank's, that was heard over a connection.
  struct RankLife {
    std::uint64_t job_epoch = 0;
    std::uint32_t rank = 0, rank_epoch = 0;
    bool operator==(const RankLife&) const = default;
  };

  // Under the lock: this call is answered next, or was cancelled.
  void forget(session::Rendezvous::Call number) {
    const auto call = calls.find(number);
    if (const auto of_peer = joins_of_peer.find(call->second.peer); --of_peer->second == 0) joins_of_peer.erase(of_peer);
    call_of.erase(call->second.connection);
    calls.erase(call);
  }

  void on_closed(Connection connection, bool by_daemon) {
    {
      const Lock lock(*this);
      if (const auto life = life_of.extract(connection); !life.empty() && !by_daemon) close_life(life.mapped());
      if (const auto number = call_of.find(connection);
          number != call_of.end() && aggregator.cancel(number->second, now())) {
        forget(number->second);
      }
    }
    wake();
  }
  // Under the lock.
  void close_life(const RankLife& life) {
    const bool elsewhere =
        std::any_of(life_of.begin(), life_of.end(), [&](const auto& entry) { return entry.second == life; });
    if (!elsewhere) aggregator.closed(life.job_epoch, life.rank, life.rank_epoch, now());
  }

  struct Command {
    Connection connection = 0;
    std::function<Answer()> carry_out;
  };
  std::optional<Answer> command(const Request& request, std::function<Answer()> what) {
    {
      const Lock lock(*this);
      if (stopping || commands.size() >= most_commands) return busy();
      commands.push_back({request.connection, std::move(what)});
    }
    wake();
    return std::nullopt;
  }

  std::optional<Answer> on_install(const Request& request, const session::SwitchMessage& message) {
    if (!hooks.install)
      return without(ErrorKind::refused, "this daemon is a parameter server, and takes no jobs from other daemons");
    const Caller from{request.address, request.principal.daemon};
    return command(request, [this, tenant = request.principal.tenant, from, message] {
      InstallReply reply{{}, instance};
      const auto failure = install(tenant, message, [&] { reply.view = hooks.install(message, from); });
      return failure ? Answer{failure} : with(reply);
    });
  }

  std::optional<Failure> install(const std::string& tenant, const session::SwitchMessage& message,
                                 const std::function<void()>& how) {
    const std::uint64_t epoch = message.job_epoch;
    session::InstallationCost cost;
    std::string error = error_of([&] { cost = hooks.cost(message); });
    if (!error.empty()) return Failure{ErrorKind::refused, error};
    Leases::Charged charged;
    {
      const Lock lock(*this);
      if (auto failure = leases.charge(tenant, epoch, cost, charged)) return failure;
    }
    error = error_of(how);
    const Lock lock(*this);
    if (error.empty()) {
      leases.hold(tenant, epoch, now() + session::installation_lease);
      return std::nullopt;
    }
    leases.give_back(charged);
    return Failure{ErrorKind::refused, error};
  }

  void uninstall(std::uint64_t epoch) {
    report_errors([&] { hooks.uninstall(epoch); });
    const Lock lock(*this);
    leases.end(epoch);
  }

  // ---- the control plane's own thread

  // Changes made under the lock, to be carried out without it.
  struct Due {
    session::Rendezvous::Step step;
    std::vector<std::uint64_t> leases;  // that have expired
    std::deque<Command> commands;
    std::vector<std::pair<Connection, Answer>> answers;
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
    for (session::Rendezvous::Answer& answer : due.step.answers) {
      const JoinCall& call = calls.at(answer.call);
      note_refusal(answer, call, due);
      if (answer.outcome.admission) {
        life_of[call.connection] = {answer.outcome.admission->job_epoch, call.rank, answer.outcome.admission->rank_epoch};
      }
      due.answers.emplace_back(call.connection, answer_of(answer, call));
      forget(answer.call);
    }
    due.leases = leases.expired(stopping ? never : at);
    due.commands.swap(commands);
    due.pulse = pulse_asked.has_value();
    for (session::JobEvent& event : std::exchange(due.step.events, {})) {
      flights.record(event);
      if (is_end(event.kind)) due.ends.push_back(std::move(event));
    }
    due.look = !stopping && flights.takes_look(at);
    if (at < next_look || stopping) return;
    next_look = at + tick;
    due.watched = aggregator.watched();
  }

  // What ended a whole job is in the log already.
  void note_refusal(const session::Rendezvous::Answer& answer, const JoinCall& call, Due& due) {
    if (!answer.late && answer.outcome.refusal == session::Refusal::none) return;
    journal.count_refused_join();
    const std::string why = answer.late ? "the job did not become complete in time" : answer.outcome.reason;
    if (std::any_of(due.step.events.begin(), due.step.events.end(),
                    [&](const session::JobEvent& event) { return is_end(event.kind) && event.what == why; })) {
      return;
    }
    due.refusals.push_back("job '" + call.job + "': rank " + std::to_string(call.rank) + " at " + call.peer +
                           " was refused: " + why);
  }

  [[nodiscard]] static Answer answer_of(const session::Rendezvous::Answer& answer, const JoinCall& call) {
    if (answer.late && answer.missing.empty()) {
      return without(ErrorKind::late,
                     "job '" + call.job + "': rank " + std::to_string(call.rank) + " is still held by its former process");
    }
    if (answer.late) {
      return without(ErrorKind::late, "job '" + call.job + "': ranks " + list(answer.missing) + " of " +
                                          std::to_string(call.world_size) + " have not joined in time");
    }
    if (answer.outcome.refusal != session::Refusal::none) return refused(answer.outcome);
    return with(*answer.outcome.admission);
  }

  [[nodiscard]] Time next_wake() const {
    Time next = aggregator.next_timeout();
    next = std::min(next, leases.next());
    if (!aggregator.watched().empty()) next = std::min(next, next_look);
    next = std::min(next, flights.next_look());
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
      journal.log_of(end.tenant, "job '" + end.job + "' " +
                                     (end.kind == session::JobEvent::Kind::ended ? "ended" : "failed: " + end.what));
    }
    flights.write_failures(origin_at(now()));
    for (const std::uint64_t epoch : due.leases) uninstall(epoch);
    latest.reset();
    for (Command& command : due.commands) {
      Answer answer;
      const std::string error = error_of([&] { answer = command.carry_out(); });
      channel->answer(command.connection, error.empty() ? std::move(answer) : without(ErrorKind::internal, error));
    }
    for (auto& [connection, answer] : due.answers) channel->answer(connection, std::move(answer));
    for (const std::uint64_t epoch : due.watched) look_at(epoch);
    for (const std::string& line : due.refusals) journal.refusal(line);
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
    journal.log_of(start.tenant, "job '" + start.job + "': " + std::to_string(start.endpoints.size()) + " ranks, " +
                                     std::to_string(start.admission.packet_elements) + " elements per packet, " +
                                     std::to_string(start.admission.slots) + " slots per lane, " +
                                     session::in_lanes(start.admission.lanes) +
                                     (start.admission.local ? ", in shared memory" : "") +
                                     (start.admission.security == PacketSecurity::none
                                          ? ""
                                          : std::string(", packets protected by ") + to_string(start.admission.security)));
    if (!start.warning.empty()) journal.log_of(start.tenant, "warning: job '" + start.job + "': " + start.warning);
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

  void look_at_flights() {
    report_errors([&] {
      const telemetry::Report seen = report(Reports::Depth::jobs);
      version = seen.version;
      flights.look(seen, now());
      for (const telemetry::DropLog::Line& line : drops.look(seen, now())) journal.log_of(line.tenant, line.text);
    });
  }

  [[nodiscard]] telemetry::FlightFileOrigin origin_at(Time at) const {
    const auto ago = std::chrono::duration_cast<std::chrono::system_clock::duration>(now() - at);
    return {version, options.switches.own, reports.address(), std::chrono::system_clock::now() - ago, at};
  }

  template <class Action>
  void report_errors(const Action& action) const {
    if (const std::string error = error_of(action); !error.empty()) journal.log("warning: " + error);
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
    events.failed = [this](std::uint64_t job_epoch, const std::string& switch_id, const std::string& why) {
      {
        const Lock lock(*this);
        aggregator.registry().fail(job_epoch, why, now(), switch_id);
      }
      wake();
    };
    events.greeted = [this](const std::string& switch_id, const std::vector<session::Profile>& profiles) {
      const Lock lock(*this);
      aggregator.registry().on_greeted(switch_id, profiles);
    };
    events.log = [this](const std::string& tenant, const std::string& line) { journal.log_of(tenant, line); };
    teller = std::make_unique<SwitchTeller>(options.switches, hooks.switches, std::move(events));
  }

  [[nodiscard]] telemetry::Report report(Reports::Depth depth = Reports::Depth::whole) {
    telemetry::Report out;
    {
      const Lock lock(*this);
      out = reports.of_registry(aggregator.registry(), now(), depth);
    }
    reports.complete(out, now(), depth);
    return out;
  }
  // On the control plane's own thread: one report for all calls that have asked meanwhile.
  [[nodiscard]] const telemetry::Report& shared_report() {
    if (!latest) latest = report();
    return *latest;
  }

  // ---- tenants

  void set_tenants(const std::vector<Tenant>& list) {
    std::map<std::string, session::Quota> quotas = callers.set_tenants(list);
    const Lock lock(*this);
    aggregator.registry().set_quotas(std::move(quotas));
  }

  // ---- the certificate

  // The TLS context of connections from now on. Throws Error: bad_argument.
  [[nodiscard]] std::shared_ptr<const TlsContext> take_certificate() {
    const auto at = std::chrono::system_clock::now();
    const DaemonCertificate certificate = read_certificate(options.tls_cert, options.tls_key, at);
    auto tls = TlsContext::of_daemon(options.tls_cert, options.tls_key);
    reports.set_certificate_until(certificate.until);
    const std::string warning = expiry_warning(certificate, options.tls_cert, at);
    if (!warning.empty()) journal.log(warning);
    return tls;
  }

  ServerOptions options;
  ServerHooks hooks;
  Journal journal;
  Callers callers;
  Flights flights;
  telemetry::DropLog drops;  // the control plane's own thread
  Reports reports;
  std::mutex mutex;  // for all members up to `stopping`
  std::condition_variable changed;
  bool woken = false;
  session::Rendezvous aggregator;
  session::Rendezvous::Call last_call = 0;
  std::map<session::Rendezvous::Call, JoinCall> calls;  // pending joins
  std::map<Connection, session::Rendezvous::Call> call_of;
  std::map<Connection, RankLife> life_of;
  std::map<std::string, std::uint32_t> joins_of_peer;
  Leases leases;  // of jobs installed here
  std::deque<Command> commands;
  Time next_look{};
  std::optional<Time> pulse_asked;  // and not answered
  bool stopping = false;

  // Of the control plane's own thread.
  std::optional<telemetry::Report> latest;
  std::string version;  // as reports say

  std::uint64_t instance = transport::random_number();
  std::unique_ptr<ChannelServer> channel;
  std::unique_ptr<SwitchTeller> teller;  // null: there are no switches below
  std::thread thread;
};

Server::Server(ServerOptions options, ServerHooks hooks) {
  if (!options.registry.random) options.registry.random = &transport::random_number;
  check_tls_pair(options.tls_cert, options.tls_key);
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
  std::shared_ptr<const TlsContext> tls;
  if (!impl->options.tls_cert.empty()) tls = impl->take_certificate();
  if (!impl->options.flight_records.empty()) impl->flights.keep_files_in(impl->options.flight_records);
  if (!impl->options.tenants.empty()) impl->set_tenants(impl->options.tenants);
  const std::string& listen = impl->options.listen;
  ChannelServer::Hooks on;
  on.manners.wants = [impl] { return impl->callers.wants(); };
  on.manners.judge = [impl](const Proofs& proofs, const std::string& transcript, const std::string& peer) {
    return impl->callers.judge(proofs, transcript, peer);
  };
  on.on_request = [impl](const ChannelServer::Request& request) { return impl->on_request(request); };
  on.on_closed = [impl](ChannelServer::Connection connection, bool by_daemon) { impl->on_closed(connection, by_daemon); };
  on.on_refused = [impl](const std::string& host, const std::string& why) { impl->journal.connection(host, why); };
  impl->channel = std::make_unique<ChannelServer>(listen, std::move(tls), impl->options.connections, std::move(on));
  impl->reports.set_address(listen.substr(0, listen.rfind(':') + 1) + std::to_string(impl->channel->port()));
  with_low_priority([&] {
    if (impl->hooks.switches.describe) impl->start_telling();
    impl->thread = std::thread([impl] { impl->run(); });
    impl->channel->start();
  });
}

Server::~Server() {
  impl_->channel->stop_accepting();
  {
    const Impl::Lock lock(*impl_);
    impl_->stopping = true;
    impl_->aggregator.shut_down(now());
  }
  impl_->wake();
  impl_->thread.join();
  if (impl_->teller) impl_->teller->stop();
  impl_->channel->stop();
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
  return impl_->reports.address();
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
  admittance.viewer = [callers = &impl_->callers](std::string_view proof) { return callers->viewer(proof); };
  admittance.challenge = [callers = &impl_->callers] { return callers->page_challenge(); };
  return admittance;
}
void Server::set_tenants(std::vector<Tenant> tenants) {
  impl_->set_tenants(tenants);
}
void Server::reload_certificate() {
  if (!impl_->options.tls_cert.empty()) impl_->channel->set_tls(impl_->take_certificate());
}

}  // namespace netsum::control
