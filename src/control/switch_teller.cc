#include "control/switch_teller.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "control/border.h"
#include "control/channel.h"
#include "control/clock.h"
#include "control/netsum.grpc.pb.h"

namespace netsum::control {
namespace {

using session::Installations;
using std::chrono::milliseconds;

constexpr auto deadline = std::chrono::duration_cast<milliseconds>(session::installation_deadline);
constexpr milliseconds farewell{400};  // to tell switches that this process ends

// "ipv4:10.0.0.1:7170" or "ipv6:%5Bfe80::1%252%5D:7170", as gRPC writes peers, to HOST:PORT.
std::string numeric_address(const std::string& peer) {
  std::string text;
  for (std::size_t i = peer.find(':') + 1; i < peer.size(); ++i) {
    if (peer[i] == '%' && i + 2 < peer.size()) {
      text += static_cast<char>(std::stoi(peer.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      text += peer[i];
    }
  }
  return text;
}

}  // namespace

struct SwitchTeller::Impl {
  template <class Request, class Reply>
  struct Exchange {
    Request request;
    Reply reply;
  };
  using Greeting = Exchange<proto::HelloRequest, proto::HelloReply>;
  using Install = Exchange<proto::Installation, proto::InstallReply>;
  using InstallRing = Exchange<proto::TreeInstallation, proto::RingView>;
  using Uninstall = Exchange<proto::Membership, proto::LeaveReply>;

  struct Call {
    Installations::Due due;
    grpc::ClientContext context;
    std::variant<Greeting, Install, InstallRing, Uninstall> messages;
    grpc::Status status;
    bool again = false;  // because the switch asked for a proof
  };
  struct Running {
    std::shared_ptr<const session::StartJob> start;
    std::map<std::string, session::JobView> views;  // of its switches
    struct Complaint {
      std::string first, last;  // why it does not take part; both were logged
      Time since{};
    };
    std::map<std::string, Complaint> complaints;  // by switch
  };

  Impl(SwitchTellerOptions o, SwitchTellerHooks h, SwitchTellerEvents e)
      : options(std::move(o)), hooks(std::move(h)), events(std::move(e)) {
    for (const std::string& name : options.kept) installations.keep(name, now());
    thread = std::thread([this] { run(); });
  }

  const SwitchTellerOptions options;
  const SwitchTellerHooks hooks;
  const SwitchTellerEvents events;

  mutable std::mutex mutex;  // guards all from here to the next comment
  std::condition_variable changed;
  Installations installations;
  std::map<std::uint64_t, Running> jobs;
  std::map<const Call*, std::shared_ptr<Call>> under_way;
  std::vector<std::shared_ptr<Call>> ended;
  std::vector<std::uint64_t> crowded;  // jobs that `installations` refused: too many switches
  bool news = false, stopping = false;

  // The thread's own.
  std::map<std::string, std::unique_ptr<proto::Aggregator::Stub>> stubs;
  std::map<std::string, std::unique_ptr<Credentials>> credentials;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      news = false;
      for (const auto& call : std::exchange(ended, {})) answer(*call, lock);
      for (const std::uint64_t epoch : std::exchange(crowded, {})) turn_away(epoch, lock);
      for (const std::uint64_t epoch : installations.take_moved()) place(epoch, lock);
      for (const auto& silent : installations.take_silent(now())) {
        fail(silent.job_epoch, silent.a_switch,
             "it has not answered for " + std::to_string(session::installation_lease / std::chrono::seconds(1)) + " s",
             lock);
      }
      for (const std::uint64_t epoch : installations.take_ready(now())) say_ready(epoch, lock);
      for (auto& due : installations.take_due(now())) begin(std::move(due), lock);
      const auto forgotten = [&](const auto& entry) { return !installations.knows(entry.first); };
      std::erase_if(stubs, forgotten);
      std::erase_if(credentials, forgotten);
      const Time next = installations.next_timeout(now());
      const auto woken = [&] { return news || stopping || !ended.empty(); };
      if (next == never) {
        changed.wait(lock, woken);
      } else {
        changed.wait_until(lock, std::chrono::steady_clock::time_point(next.time_since_epoch()), woken);
      }
    }
    part(lock);
  }

  // Says goodbye to switches that answer at once, and waits for pending calls.
  void part(std::unique_lock<std::mutex>& lock) {
    for (const auto& [epoch, job] : std::exchange(jobs, {})) installations.remove(epoch);
    for (const auto& [key, call] : under_way) {
      if (call->due.what == Installations::Ask::greet) call->context.TryCancel();
    }
    const auto end = std::chrono::steady_clock::now() + farewell;
    do {
      for (const auto& call : std::exchange(ended, {})) answer(*call, lock);
      for (auto& due : installations.take_due(now())) {
        if (due.what == Installations::Ask::uninstall) begin(std::move(due), lock);
      }
    } while ((!under_way.empty() || !ended.empty()) && changed.wait_until(lock, end, [&] { return !ended.empty(); }));
    for (const auto& [key, call] : under_way) call->context.TryCancel();
    changed.wait(lock, [&] { return under_way.empty(); });
  }

  // ---- answers

  void say_ready(std::uint64_t epoch, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    events.ready(epoch);
    lock.lock();
  }

  void turn_away(std::uint64_t epoch, std::unique_lock<std::mutex>& lock) {
    const auto job = jobs.find(epoch);
    if (job == jobs.end()) return;
    const std::string first = job->second.start->admission.placement.switches.front();
    complain(epoch, first,
             "its jobs have " + std::to_string(Installations::most_switches) +
                 " switches already, which are as many as this " + options.own + " tells of jobs",
             true, lock);
    say_ready(epoch, lock);
  }

  void place(std::uint64_t epoch, std::unique_lock<std::mutex>& lock) {
    const auto job = jobs.find(epoch);
    if (job == jobs.end()) return;
    const auto start = job->second.start;
    const SwitchLanes lanes = installations.lanes_of(epoch);
    std::string why;
    lock.unlock();
    try {
      hooks.place(*start, lanes);
    } catch (const std::exception& error) {
      why = error.what();
    }
    lock.lock();
    if (!why.empty()) complain(epoch, start->admission.placement.switches.front(), why, true, lock);
  }

  void answer(const Call& call, std::unique_lock<std::mutex>& lock) {
    const Installations::Due& due = call.due;
    if (const auto known = credentials.find(due.a_switch);
        !call.again && known != credentials.end() && challenged(call.context, call.status, *known->second)) {
      return begin(due, lock, true);
    }
    if (due.what == Installations::Ask::greet) return on_greeted(call, lock);
    if (!call.status.ok()) {
      const Error error = error_of(call.status, due.a_switch);
      const bool refused = error.code() == ErrorCode::refused;
      if (refused && due.what == Installations::Ask::install) {
        installations.on_refused(due.job_epoch, due.a_switch, now());
      } else if (refused) {
        installations.on_uninstalled(due.a_switch);
      } else {
        installations.on_failure(due.a_switch, now());
        connect_anew(call);
      }
      if (due.what == Installations::Ask::install) complain(due.job_epoch, due.a_switch, error.what(), refused, lock);
      return;
    }
    if (due.what == Installations::Ask::uninstall) return installations.on_uninstalled(due.a_switch);
    session::JobView view;
    std::uint64_t instance = 0;
    if (const auto* ring = std::get_if<InstallRing>(&call.messages)) {
      auto parsed = parse(ring->reply);
      if (!parsed) {
        installations.on_failure(due.a_switch, now());
        return complain(due.job_epoch, due.a_switch, "invalid reply: " + parsed.why(), false, lock);
      }
      view = std::move(*parsed);
      instance = ring->reply.instance();
    } else {
      instance = std::get<Install>(call.messages).reply.instance();
    }
    installations.on_installed(due.job_epoch, due.a_switch, instance, now());
    const auto job = jobs.find(due.job_epoch);
    if (job == jobs.end()) return;
    job->second.views[due.a_switch] = std::move(view);
    if (job->second.complaints.erase(due.a_switch) == 0) return;
    say(job->second, "switch " + due.a_switch + " takes part in job '" + job->second.start->job + "' again", lock);
  }

  // A line of the log, of the job's tenant.
  void say(const Running& job, const std::string& line, std::unique_lock<std::mutex>& lock) {
    const std::string tenant = job.start->tenant;
    lock.unlock();
    events.log(tenant, line);
    lock.lock();
  }
  [[nodiscard]] static std::string absence(const Running& job, const std::string& a_switch, const std::string& what) {
    return "switch " + a_switch + " does not take part in job '" + job.start->job + "': " + what;
  }

  // A new connection is tried sooner, and resolves the name again. A connection still in setup goes on: a slow name server
  // may take longer than one call.
  void connect_anew(const Call& call) {
    if (stopping || call.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return;
    stubs.erase(call.due.a_switch);
  }

  void on_greeted(const Call& call, std::unique_lock<std::mutex>& lock) {
    const std::string& name = call.due.a_switch;
    const proto::HelloReply& reply = std::get<Greeting>(call.messages).reply;
    try {
      if (!call.status.ok()) throw error_of(call.status, name);  // looks no further: this thread waits for nobody
      const auto hello = parse(reply);
      if (!hello) throw Error(ErrorCode::internal, "invalid reply: " + hello.why());
      std::vector<Endpoint> lanes = hello->lanes;
      if (hello->in_wire != options.in_wire) {
        throw Error(ErrorCode::refused, options.in_wire
                                            ? "it is no bump in the wire, as this one is"
                                            : "it is a bump in the wire, which takes part in jobs of bumps only");
      }
      if (options.in_wire && lanes.empty()) {
        throw Error(ErrorCode::refused, "it is a bump of one rack: start it with --racks");
      }
      if (lanes.size() < options.lanes) {
        throw Error(ErrorCode::refused, "it has " + std::to_string(lanes.size()) + " threads, this " + options.own + " " +
                                            std::to_string(options.lanes) + ": start it with --threads " +
                                            std::to_string(options.lanes));
      }
      hooks.complete(lanes, numeric_address(call.context.peer()));
      installations.on_greeted(name, lanes, hello->instance, now());
      lock.unlock();
      events.pool(name, hello->pool_slots);
      lock.lock();
    } catch (const Error& error) {
      installations.on_failure(name, now());
      connect_anew(call);
      std::vector<std::uint64_t> waiting;
      for (const auto& [epoch, job] : jobs) {
        const auto& names = job.start->admission.placement.switches;
        if (std::find(names.begin(), names.end(), name) != names.end()) waiting.push_back(epoch);
      }
      for (const std::uint64_t epoch : waiting) {
        complain(epoch, name, error.what(), error.code() == ErrorCode::refused, lock);
      }
    }
  }

  // `final`: asking again will not help.
  void complain(std::uint64_t epoch, const std::string& a_switch, const std::string& what, bool final,
                std::unique_lock<std::mutex>& lock) {
    const auto job = jobs.find(epoch);
    if (job == jobs.end()) return;
    if (final && job->second.start->switches_needed) return fail(epoch, a_switch, what, lock);
    const auto [complaint, is_new] = job->second.complaints.try_emplace(a_switch, Running::Complaint{what, what, now()});
    if (!is_new && std::exchange(complaint->second.last, what) == what) return;
    say(job->second, "warning: " + absence(job->second, a_switch, what), lock);
  }

  void fail(std::uint64_t epoch, const std::string& a_switch, const std::string& why, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    events.failed(epoch, "it cannot do without switch " + a_switch + ": " + why);
    lock.lock();
  }

  // ---- calls

  [[nodiscard]] ClientOptions client_of(const std::string& name) const {
    return {name, options.token, options.tls_ca, options.daemon_token};
  }

  void begin(Installations::Due due, std::unique_lock<std::mutex>& lock, bool again = false) {
    std::shared_ptr<const session::StartJob> start;
    SwitchLanes lanes;
    if (due.what == Installations::Ask::install) {
      const auto job = jobs.find(due.job_epoch);
      if (job == jobs.end()) return installations.on_uninstalled(due.a_switch);  // it has ended meanwhile
      start = job->second.start;
      lanes = installations.lanes_of(due.job_epoch);
    }
    const auto call = std::make_shared<Call>();
    call->due = std::move(due);
    call->again = again;
    under_way.emplace(call.get(), call);
    lock.unlock();
    std::string why;
    try {
      send(call, start, lanes);
    } catch (const std::exception& error) {
      why = error.what();
    }
    lock.lock();
    if (why.empty()) return;
    under_way.erase(call.get());
    const Installations::Due& failed = call->due;
    installations.on_failure(failed.a_switch, now());
    if (failed.what == Installations::Ask::install) complain(failed.job_epoch, failed.a_switch, why, false, lock);
  }

  void send(const std::shared_ptr<Call>& call, const std::shared_ptr<const session::StartJob>& start,
            const SwitchLanes& lanes) {
    const std::string& name = call->due.a_switch;
    const ClientOptions client = client_of(name);
    auto& known = credentials[name];
    if (!known) known = std::make_unique<Credentials>(client.token, client.daemon_token);
    auto& stub = stubs[name];
    if (!stub) {
      stub = proto::Aggregator::NewStub(open_channel(client, options.target ? options.target(name) : name));
    }
    call->context.set_deadline(std::chrono::system_clock::now() + deadline);
    const auto show = [&](const char* what, const auto& request) {
      if (!known->empty()) prove(call->context, *known, what, request.SerializeAsString());
    };
    // gRPC's thread must not own the call: a context may have the last reference to its channel, and a channel that ends in
    // gRPC's own thread waits for none of them, so that one may run on after main() has returned.
    const auto done = [this, key = static_cast<const Call*>(call.get())](const grpc::Status& status) {
      const std::lock_guard lock(mutex);
      ended.push_back(std::move(under_way.extract(key).mapped()));
      ended.back()->status = status;
      changed.notify_all();
    };
    auto* const async = stub->async();
    switch (call->due.what) {
      case Installations::Ask::greet: {
        call->context.set_wait_for_ready(true);  // also finds a switch that starts a moment later
        auto& messages = call->messages.emplace<Greeting>();
        show("Hello", messages.request);
        return async->Hello(&call->context, &messages.request, &messages.reply, done);
      }
      case Installations::Ask::uninstall: {
        auto& messages = call->messages.emplace<Uninstall>();
        write_uninstall(call->due.job_epoch, messages.request);
        show("Uninstall", messages.request);
        return async->Uninstall(&call->context, &messages.request, &messages.reply, done);
      }
      case Installations::Ask::install:
        break;
    }
    const auto message = hooks.describe(*start, call->due.index, call->due.again, lanes);
    if (const auto* ring = std::get_if<session::TreeInstallation>(&message)) {
      auto& messages = call->messages.emplace<InstallRing>();
      write(*ring, messages.request);
      show("InstallRing", messages.request);
      return async->InstallRing(&call->context, &messages.request, &messages.reply, done);
    }
    auto& messages = call->messages.emplace<Install>();
    write(std::get<session::Installation>(message), messages.request);
    show("Install", messages.request);
    async->Install(&call->context, &messages.request, &messages.reply, done);
  }
};

SwitchTeller::SwitchTeller(SwitchTellerOptions options, SwitchTellerHooks hooks, SwitchTellerEvents events)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(hooks), std::move(events))) {}

SwitchTeller::~SwitchTeller() {
  stop();
}

void SwitchTeller::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->changed.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void SwitchTeller::add(const session::StartJob& start) {
  const session::Placement& placement = start.admission.placement;
  if (placement.switches.empty()) return;
  auto shared = std::make_shared<const session::StartJob>(start);
  const std::lock_guard lock(impl_->mutex);
  impl_->jobs[start.admission.job_epoch] = {std::move(shared), {}, {}};
  if (!impl_->installations.add(start.admission.job_epoch, placement, now(), start.switches_needed)) {
    impl_->crowded.push_back(start.admission.job_epoch);
  }
  impl_->news = true;
  impl_->changed.notify_all();
}

void SwitchTeller::remove(std::uint64_t job_epoch) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->jobs.erase(job_epoch) == 0) return;
  impl_->installations.remove(job_epoch);
  impl_->news = true;
  impl_->changed.notify_all();
}

bool SwitchTeller::ready(std::uint64_t job_epoch) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->installations.ready(job_epoch, now());
}

std::string SwitchTeller::warning(std::uint64_t job_epoch) const {
  const std::lock_guard lock(impl_->mutex);
  const auto job = impl_->jobs.find(job_epoch);
  if (job == impl_->jobs.end() || job->second.complaints.empty()) return "";
  // One that is away for a moment knows its jobs when it is back.
  for (const auto& [name, complaint] : job->second.complaints) {
    if (now() - complaint.since >= session::installation_lease) return Impl::absence(job->second, name, complaint.first);
  }
  return "";
}

session::JobView SwitchTeller::refined(std::uint64_t job_epoch, session::JobView view) const {
  const std::lock_guard lock(impl_->mutex);
  const auto job = impl_->jobs.find(job_epoch);
  if (job == impl_->jobs.end()) return view;
  for (const auto& [name, of_switch] : job->second.views) {
    if (!of_switch.mismatch.empty()) view.mismatch = of_switch.mismatch;
    view.missing = session::refined(view.missing, job->second.start->admission.placement, name, of_switch.missing);
  }
  return view;
}

}  // namespace netsum::control
