#include "control/switch_teller.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "control/border.h"
#include "control/channel.h"
#include "control/client.h"
#include "control/clock.h"
#include "transport/system/socket.h"

namespace netsum::control {
namespace {

using session::Installations;
using std::chrono::milliseconds;

constexpr auto call_deadline = std::chrono::duration_cast<milliseconds>(session::installation_deadline);
constexpr milliseconds goodbye_patience{400};  // to tell switches that this process ends

}  // namespace

struct SwitchTeller::Impl {
  // A switch's connection, and what it was asked.
  struct Call {
    Call(const ClientOptions& client, std::shared_ptr<const TlsContext> tls, const Resolve& resolve)
        : channel(client, std::move(tls), resolve) {}
    Channel channel;
    Installations::Due due;
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
      : options(std::move(o)),
        hooks(std::move(h)),
        events(std::move(e)),
        tls(options.tls_ca.empty() ? nullptr : TlsContext::of_caller(options.tls_ca)) {
    for (const std::string& name : options.kept) installations.keep(name, now());
    thread = std::thread([this] { run(); });
  }

  const SwitchTellerOptions options;
  const SwitchTellerHooks hooks;
  const SwitchTellerEvents events;
  const std::shared_ptr<const TlsContext> tls;
  const transport::Descriptor wake{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  mutable std::mutex mutex;  // guards all from here to the next comment
  Installations installations;
  std::map<std::uint64_t, Running> jobs;
  std::vector<std::uint64_t> crowded;  // jobs that `installations` refused: too many switches
  bool stopping = false;

  // The thread's own.
  std::map<std::string, std::unique_ptr<Call>> calls;  // by switch
  std::thread thread;

  void notify() const { static_cast<void>(eventfd_write(wake.number(), 1)); }

  void run() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      for (const std::uint64_t epoch : std::exchange(crowded, {})) turn_away(epoch, lock);
      for (const std::uint64_t epoch : installations.take_moved()) place(epoch, lock);
      for (const auto& silent : installations.take_silent(now())) {
        fail(silent.job_epoch, silent.switch_id,
             silent.closed ? "its process has ended" : "it has not answered for " + session::in_seconds(silent.silence),
             lock, silent.closed);
      }
      for (const std::uint64_t epoch : installations.take_ready(now())) say_ready(epoch, lock);
      for (auto& due : installations.take_due(now())) begin(std::move(due), lock);
      std::erase_if(calls, [&](const auto& entry) { return !installations.knows(entry.first); });
      const Time next = installations.next_timeout(now());
      wait(next == never ? Channel::Clock::time_point::max() : Channel::Clock::time_point(next.time_since_epoch()), lock);
    }
    part(lock);
  }

  // Until then, or until somebody has news or a switch answers; and hears all answers.
  void wait(Channel::Clock::time_point until, std::unique_lock<std::mutex>& lock) {
    std::vector<pollfd> watched{{wake.number(), POLLIN, 0}};
    for (const auto& [name, call] : calls) {
      if (!call->channel.busy()) continue;
      watched.push_back({call->channel.descriptor(), call->channel.events(), 0});
      until = std::min(until, call->channel.wake_by());
    }
    lock.unlock();
    const auto left =
        until == Channel::Clock::time_point::max()
            ? -1
            : std::max<std::int64_t>(std::chrono::ceil<milliseconds>(until - Channel::Clock::now()).count(), 0);
    ::poll(watched.data(), watched.size(), static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    eventfd_t count = 0;
    static_cast<void>(eventfd_read(wake.number(), &count));
    lock.lock();
    for (auto& [name, call] : calls) {
      if (!call->channel.busy()) continue;
      if (const auto outcome = call->channel.step(Channel::Clock::now())) answer(*call, *outcome, lock);
    }
  }

  // Says goodbye to switches that answer at once, and waits no longer for the others.
  void part(std::unique_lock<std::mutex>& lock) {
    for (const auto& [epoch, job] : std::exchange(jobs, {})) installations.remove(epoch);
    for (const auto& [name, call] : calls) {
      if (!call->channel.busy() || call->due.what != Installations::Ask::greet) continue;
      call->channel.give_up();
      installations.on_failure(name, now());
    }
    const auto busy = [&] {
      return std::any_of(calls.begin(), calls.end(), [](const auto& entry) { return entry.second->channel.busy(); });
    };
    const auto end = Channel::Clock::now() + goodbye_patience;
    do {
      for (auto& due : installations.take_due(now())) {
        if (due.what == Installations::Ask::uninstall) begin(std::move(due), lock);
      }
      if (busy()) wait(end, lock);
    } while (busy() && Channel::Clock::now() < end);
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
             "the jobs of this " + options.own + " have " + std::to_string(Installations::most_switches) +
                 " switches already, its maximum",
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

  void answer(const Call& call, const Channel::Outcome& outcome, std::unique_lock<std::mutex>& lock) {
    const Installations::Due due = call.due;
    std::optional<Error> error = outcome.error;
    if (outcome.answer.failure) error = error_of(*outcome.answer.failure, due.switch_id);
    if (due.what == Installations::Ask::greet) return on_greeted(call, outcome, error, lock);
    if (error) {
      const bool refused = error->code() == ErrorCode::refused;
      if (refused && due.what == Installations::Ask::install) {
        installations.on_refused(due.job_epoch, due.switch_id, now());
      } else if (refused) {
        installations.on_uninstalled(due.switch_id);
      } else {
        installations.on_failure(due.switch_id, now(), call.channel.refused());
      }
      if (due.what == Installations::Ask::install) complain(due.job_epoch, due.switch_id, error->what(), refused, lock);
      return;
    }
    if (due.what == Installations::Ask::uninstall) return installations.on_uninstalled(due.switch_id);
    const auto taken = [&](std::uint64_t instance, session::JobView view) {
      installations.on_installed(due.job_epoch, due.switch_id, instance, now());
      const auto job = jobs.find(due.job_epoch);
      if (job == jobs.end()) return;
      job->second.views[due.switch_id] = std::move(view);
      if (job->second.complaints.erase(due.switch_id) == 0) return;
      say(job->second, "switch " + due.switch_id + " takes part in job '" + job->second.start->job + "' again", lock);
    };
    const auto invalid = [&](const std::string& why) {
      installations.on_failure(due.switch_id, now());
      complain(due.job_epoch, due.switch_id, "invalid reply: " + why, false, lock);
    };
    auto reply = parse<InstallReply>(view(outcome.answer.payload));
    return reply ? taken(reply->instance, std::move(reply->view)) : invalid(reply.why());
  }

  // A line of the log, of the job's tenant.
  void say(const Running& job, const std::string& line, std::unique_lock<std::mutex>& lock) {
    const std::string tenant = job.start->tenant;
    lock.unlock();
    events.log(tenant, line);
    lock.lock();
  }
  [[nodiscard]] static std::string absence(const Running& job, const std::string& switch_id, const std::string& what) {
    return "switch " + switch_id + " does not take part in job '" + job.start->job + "': " + what;
  }

  void on_greeted(const Call& call, const Channel::Outcome& outcome, const std::optional<Error>& failure,
                  std::unique_lock<std::mutex>& lock) {
    const std::string name = call.due.switch_id;
    try {
      if (failure) throw Error(*failure);
      const auto hello = parse<Hello>(view(outcome.answer.payload));
      if (!hello) throw Error(ErrorCode::internal, "invalid reply: " + hello.why());
      std::vector<Endpoint> lanes = hello->lanes;
      if (hello->in_wire != options.in_wire) {
        throw Error(ErrorCode::refused, options.in_wire ? "it is not a bump in the wire, as this one is"
                                                        : "it is a bump in the wire, and takes part only in jobs of bumps");
      }
      if (options.in_wire && lanes.empty()) {
        throw Error(ErrorCode::refused, "it is a bump of one rack: start it with --racks");
      }
      hooks.complete(lanes, call.channel.numeric_address());
      installations.on_greeted(name, lanes, hello->instance, now());
      lock.unlock();
      events.greeted(name, hello->profiles);
      lock.lock();
    } catch (const Error& error) {
      installations.on_failure(name, now());
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
  void complain(std::uint64_t epoch, const std::string& switch_id, const std::string& what, bool final,
                std::unique_lock<std::mutex>& lock) {
    const auto job = jobs.find(epoch);
    if (job == jobs.end()) return;
    if (final && job->second.start->switches_needed) return fail(epoch, switch_id, what, lock);
    const auto [complaint, is_new] = job->second.complaints.try_emplace(switch_id, Running::Complaint{what, what, now()});
    if (!is_new && std::exchange(complaint->second.last, what) == what) return;
    say(job->second, "warning: " + absence(job->second, switch_id, what), lock);
  }

  // `seen`: ranks find out at once whether it is there again.
  void fail(std::uint64_t epoch, const std::string& switch_id, const std::string& why, std::unique_lock<std::mutex>& lock,
            bool seen = false) {
    lock.unlock();
    events.failed(epoch, seen ? "" : switch_id, "the job requires switch " + switch_id + ": " + why);
    lock.lock();
  }

  // ---- calls

  [[nodiscard]] ClientOptions client_of(const std::string& name) const {
    return {name, options.token, options.tls_ca, options.daemon_token};
  }

  void begin(Installations::Due due, std::unique_lock<std::mutex>& lock) {
    std::shared_ptr<const session::StartJob> start;
    SwitchLanes lanes;
    if (due.what == Installations::Ask::install) {
      const auto job = jobs.find(due.job_epoch);
      if (job == jobs.end()) return installations.on_uninstalled(due.switch_id);  // it has ended meanwhile
      start = job->second.start;
      lanes = installations.lanes_of(due.job_epoch);
      const std::size_t has = lanes.at(due.index).size(), needs = session::lanes_of(*start);
      if (has < needs) {
        installations.on_refused(due.job_epoch, due.switch_id, now());
        return complain(due.job_epoch, due.switch_id,
                        "it has " + session::in_lanes(has) + ", and the job " + std::to_string(needs) +
                            ": start it with --lanes " + std::to_string(needs),
                        true, lock);
      }
    }
    lock.unlock();
    std::string why;
    try {
      send(due, start, lanes);
    } catch (const std::exception& error) {
      why = error.what();
    }
    lock.lock();
    if (why.empty()) return;
    installations.on_failure(due.switch_id, now());
    if (due.what == Installations::Ask::install) complain(due.job_epoch, due.switch_id, why, false, lock);
  }

  void send(const Installations::Due& due, const std::shared_ptr<const session::StartJob>& start, const SwitchLanes& lanes) {
    auto& call = calls[due.switch_id];
    if (!call) call = std::make_unique<Call>(client_of(due.switch_id), tls, options.resolve);
    call->due = due;
    const auto ask = [&](Kind kind, Bytes payload) {
      // A greeting also finds a switch that starts a moment later.
      call->channel.request(kind, std::move(payload), Channel::Clock::now() + call_deadline, kind == Kind::hello);
    };
    switch (due.what) {
      case Installations::Ask::greet:
        return ask(Kind::hello, control::write(HelloRequest{}));
      case Installations::Ask::uninstall:
        return ask(Kind::uninstall, control::write(Uninstall{due.job_epoch}));
      case Installations::Ask::install:
        break;
    }
    ask(Kind::install, control::write(hooks.describe(*start, due.index, due.again, lanes)));
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
  impl_->notify();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void SwitchTeller::add(const session::StartJob& start) {
  const session::Placement& placement = start.admission.placement;
  if (placement.switches.empty()) return;
  auto shared = std::make_shared<const session::StartJob>(start);
  const std::lock_guard lock(impl_->mutex);
  impl_->jobs[start.admission.job_epoch] = {std::move(shared), {}, {}};
  if (!impl_->installations.add(start.admission.job_epoch, placement, now(), start.switches_needed, start.switch_patience)) {
    impl_->crowded.push_back(start.admission.job_epoch);
  }
  impl_->notify();
}

void SwitchTeller::remove(std::uint64_t job_epoch) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->jobs.erase(job_epoch) == 0) return;
  impl_->installations.remove(job_epoch);
  impl_->notify();
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
    view.take_mismatch(of_switch);
    if (!of_switch.hopeless.empty()) view.hopeless = of_switch.hopeless;
    view.missing = session::refined(view.missing, job->second.start->admission.placement, name, of_switch.missing);
  }
  return view;
}

}  // namespace netsum::control
