#include "daemon/served_jobs.h"

#include <algorithm>
#include <span>
#include <utility>

#include "daemon/switches.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"

namespace netsum::daemon {

ServedJobs::ServedJobs(std::vector<std::unique_ptr<service::Service>> services, Own own, Prove prove, SendFrom send_from)
    : services_(std::move(services)), own_(std::move(own)), prove_(std::move(prove)), send_from_(std::move(send_from)) {
  for (const auto& service : services_) {
    if (const auto rules = service->rules()) protocols_[rules->name] = service.get();
  }
}

std::vector<session::ProtocolRules> ServedJobs::rules() const {
  std::vector<session::ProtocolRules> all;
  for (const auto& service : services_) {
    if (auto rules = service->rules()) all.push_back(std::move(*rules));
  }
  return all;
}

void ServedJobs::serve(control::ServerHooks& hooks) {
  hooks.lanes = own_;
  hooks.start_job = [this](const session::StartJob& job) { start(job); };
  hooks.stop_job = [this](const session::StopJob& job) { stop(job.job_epoch); };
  hooks.look = [this](std::uint64_t epoch) { return look(epoch); };
  for (const auto& service : services_) {
    if (auto profile = service->profile()) hooks.profiles.push_back(std::move(*profile));
  }
  if (std::any_of(services_.begin(), services_.end(), [](const auto& service) { return !service->takes().empty(); })) {
    hooks.cost = [this](const session::SwitchMessage& message) { return taker_of(message).cost(message); };
    hooks.install = [this](const session::SwitchMessage& message, const control::Caller& caller) {
      return install(message, caller);
    };
  }
  hooks.uninstall = [this](std::uint64_t epoch) { stop(epoch); };
  hooks.switches.complete = &complete_lanes;
  hooks.switches.place = [this](const session::StartJob& job, const control::SwitchLanes& switches) {
    place(job, switches);
  };
  hooks.switches.describe = [this](const session::StartJob& job, std::uint32_t switch_id, bool again,
                                   const control::SwitchLanes& switches) {
    return describe(job, switch_id, again, switches);
  };
}

// ---- on the control plane's own thread

std::shared_ptr<ServedJobs::Served> ServedJobs::find(std::uint64_t epoch) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(epoch);
  return found == jobs_.end() ? nullptr : found->second;
}

void ServedJobs::start(const session::StartJob& start) {
  auto job = std::make_shared<Served>(protocols_.at(start.protocol)->start(start));
  const std::lock_guard lock(mutex_);
  jobs_[start.admission.job_epoch] = std::move(job);
}

void ServedJobs::stop(std::uint64_t epoch) {
  std::shared_ptr<Served> served;
  {
    const std::lock_guard lock(mutex_);
    if (auto found = jobs_.extract(epoch)) served = std::move(found.mapped());
  }
  if (!served) return;
  const std::lock_guard lock(served->changing);
  served->job->stop();
}

service::Service& ServedJobs::taker_of(const session::SwitchMessage& message) const {
  const auto taker = std::find_if(services_.begin(), services_.end(), [&](const auto& service) {
    return !message.protocol.empty() && service->takes() == message.protocol;
  });
  if (taker != services_.end()) return **taker;
  throw Error(ErrorCode::refused, "this switch does not serve protocol '" + message.protocol + "'");
}

session::JobView ServedJobs::install(const session::SwitchMessage& message, const control::Caller& caller) {
  const std::uint64_t epoch = message.job_epoch;
  const auto prove = [&](const std::vector<session::Destination>& destinations) { prove_(destinations, caller); };
  auto served = find(epoch);
  service::InstalledJob installed = taker_of(message).install(message, served ? served->job.get() : nullptr, prove);
  installed.status.world_size = installed.status.joined.size();  // only those below this switch
  installed.status.running = true;
  name_sources(installed.known_as);
  const bool is_new = !served;
  if (is_new) served = std::make_shared<Served>(std::move(installed.job));
  {
    const std::lock_guard lock(mutex_);
    served->installed = std::move(installed.status);
    jobs_[epoch] = served;
  }
  return is_new ? session::JobView{} : served->job->look();
}

// Other daemons know this one by the address at which its control channel was reached. Its routes to them may prefer another
// one, and it sends first.
void ServedJobs::name_sources(const std::vector<session::KnownAs>& known_as) const {
  const std::vector<Endpoint> lanes = own_();
  for (const auto& [to, own] : known_as) {
    const std::uint16_t port = own.port;
    const auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const Endpoint& each) { return each.port == port; });
    if (lane == lanes.end() || !transport::is_unspecified(*lane) || !transport::is_of_this_host(own)) continue;
    send_from_(static_cast<std::size_t>(lane - lanes.begin()), to, own);
  }
}

session::JobView ServedJobs::look(std::uint64_t epoch) const {
  const auto served = find(epoch);
  return served ? served->job->look() : session::JobView{};
}

void ServedJobs::fill(telemetry::Report& report, std::size_t lanes,
                      const std::function<void(std::size_t lane, const std::function<void()>&)>& run) const {
  std::vector<std::shared_ptr<Served>> served;  // of the report's jobs; null: no lane serves it
  const std::size_t joined_here = report.jobs.size();
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [epoch, job] : jobs_) {
      if (job->installed) report.jobs.push_back({.job = *job->installed});
    }
    for (const telemetry::JobReport& job : report.jobs) {
      const auto found = jobs_.find(job.job.job_epoch);
      served.push_back(found == jobs_.end() ? nullptr : found->second);
    }
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    run(lane, [&] {
      for (const auto& service : services_) service->report(lane, report.counters);
      for (std::size_t i = 0; i < served.size(); ++i) {
        if (served[i]) served[i]->job->report(lane, report.jobs[i]);
      }
    });
  }
  for (telemetry::JobReport& job : std::span(report.jobs).first(joined_here)) {  // lanes number the members
    for (auto& stall : job.stalled) {
      for (std::uint32_t& rank : stall.missing) {
        if (rank < job.job.joined.size()) rank = job.job.joined.at_place(rank);
      }
    }
  }
}

// ---- calls from other threads

void ServedJobs::place(const session::StartJob& start, const control::SwitchLanes& switches) const {
  const auto served = find(start.admission.job_epoch);
  if (!served) return;
  const std::lock_guard lock(served->changing);
  served->job->place(start, switches);
}

session::SwitchMessage ServedJobs::describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                            const control::SwitchLanes& switches) const {
  std::vector<Endpoint> own = own_endpoints(own_(), switches[switch_id].front());
  own.resize(session::lanes_of(start));
  return protocols_.at(start.protocol)->describe(start, switch_id, again, switches, own);
}

}  // namespace netsum::daemon
