#include "sim/aggregator_host.h"

#include <algorithm>
#include <new>
#include <utility>

#include "sim/random.h"

namespace netsum::sim {
namespace {

session::RegistryConfig registry_config(const Scenario& scenario, const session::ProtocolRules& rules, HostId id,
                                        std::uint32_t life) {
  session::RegistryConfig config;
  config.protocols = {rules};
  for (std::size_t i = 0; i < scenario.parent_of_switch.size(); ++i) {
    const std::uint32_t parent = scenario.parent_of_switch[i];
    if (parent != session::Placement::at_server) config.switch_parents[std::to_string(i)] = std::to_string(parent);
  }
  config.lanes = scenario.lanes + scenario.spare_lanes;
  config.heartbeat_timeout = config.survivor_timeout = heartbeat_timeout;  // heartbeats are lost here
  config.slots = scenario.switch_slots;
  config.keys = config.keys_below = true;
  config.security = scenario.security;
  config.quotas[std::string(intruder)] = {.jobs = 2, .joins = 4};
  config.random = [random = Random(derive(derive(scenario.seed, 0xe90c), std::uint64_t{id} << 32 | life))]() mutable {
    return random.next();
  };
  return config;
}

}  // namespace

session::SwitchEndpoint switch_endpoints(const Scenario& scenario, const session::Placement& placement) {
  return [&](std::uint32_t switch_id, std::size_t lane) {
    const auto index = static_cast<std::uint32_t>(std::stoul(placement.switches[switch_id]));
    return endpoint_of(switch_host(scenario, index), static_cast<std::uint16_t>(aggregator_port + lane));
  };
}

AggregatorHost::AggregatorHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                               std::uint32_t life)
    : Host(surroundings, id),
      scenario_(scenario),
      lanes_(surroundings, id, scenario.lanes + scenario.spare_lanes),
      checked_(protocol.aggregator_service(scenario, lanes_.for_services())),
      aggregator_(registry_config(scenario, *checked_->service().rules(), id, life)) {}

void AggregatorHost::turn(std::span<const Datagram> datagrams, Time now) {
  lanes_.turn(datagrams, now);
  if (now >= wake_) {
    settle(now);  // first: ranks that got no message cannot count as silent
    if (now >= aggregator_.next_timeout()) {
      aggregator_.on_timer(now);
      settle(now);
    }
    check();
  } else if (scenario_.checked && ++turns_ % turns_per_check == 0) {
    checked_->check(lanes_.counts());
  }
}

void AggregatorHost::on_reply(const ControlReply& reply, Time now) {
  if (const auto* greeted = std::get_if<Greeted>(&reply.what)) {
    installations_.on_greeted(std::to_string(greeted->switch_id), greeted->lanes, greeted->instance, now);
  } else if (const auto* removed = std::get_if<Removed>(&reply.what)) {
    installations_.on_uninstalled(std::to_string(removed->switch_id));
  } else {
    const auto& installed = std::get<Installed>(reply.what);
    const std::string name = std::to_string(installed.switch_id);
    if (installed.declined) {
      installations_.on_refused(installed.job_epoch, name, now);
    } else if (installed.lost) {
      installations_.on_refused(installed.job_epoch, name, now);
      aggregator_.registry().fail(installed.job_epoch, "switch " + name + " has lost its sums", now);
    } else {
      installations_.on_installed(installed.job_epoch, name, installed.instance, now);
      if (const auto job = jobs_.find(installed.job_epoch); job != jobs_.end()) job->second.views[name] = installed.view;
    }
  }
  settle(now);
  check();
}

// Corresponds to SwitchTeller::refined() in the binaries.
session::JobView AggregatorHost::look(std::uint64_t epoch) const {
  const auto job = jobs_.find(epoch);
  if (job == jobs_.end()) return {};
  session::JobView view = job->second.served->look();
  for (const auto& [name, of_switch] : job->second.views) {
    view.take_mismatch(of_switch);
    view.missing = session::refined(view.missing, job->second.start.admission.placement, name, of_switch.missing);
  }
  return view;
}

void AggregatorHost::on_call(const ControlCall& call, Time now) {
  if (const auto* join = std::get_if<JoinCall>(&call.what)) {
    joins_[++last_join_] = {call.from, call.number};
    aggregator_.join(last_join_, join->request, never, now);
  } else if (const auto* cancel = std::get_if<CancelCall>(&call.what)) {
    const auto found = std::find_if(joins_.begin(), joins_.end(), [&](const auto& entry) {
      return entry.second.from == call.from && entry.second.number == cancel->join;
    });
    if (found == joins_.end()) return;
    aggregator_.cancel(found->first, now);
    joins_.erase(found);
  } else if (const auto* beat = std::get_if<BeatCall>(&call.what)) {
    if (aggregator_.registry().belongs(beat->job_epoch, call.tenant)) {
      session::JobView view = look(beat->job_epoch);
      const bool fails = !view.mismatch.empty();
      aggregator_.on_view(beat->job_epoch, std::move(view), now);
      if (fails) settle(now);
    }
    surroundings_.reply(id(), call.from,
                        {call.number, id(),
                         aggregator_.heartbeat(beat->job_epoch, beat->rank, beat->rank_epoch, call.tenant, now, beat->call,
                                               beat->seen, beat->pace)});
  } else if (const auto* close = std::get_if<CloseCall>(&call.what)) {
    aggregator_.closed(close->job_epoch, close->rank, close->rank_epoch, now);
  } else if (const auto* leave = std::get_if<LeaveCall>(&call.what)) {
    aggregator_.leave(leave->job_epoch, leave->rank, leave->rank_epoch, call.tenant, leave->why, now);
  }
  settle(now);
  check();
}

void AggregatorHost::settle(Time now) {
  for (const auto& silent : installations_.take_silent(now)) {
    aggregator_.registry().fail(silent.job_epoch, "switch " + silent.switch_id + " has not answered", now, silent.switch_id);
  }
  const auto ready = [&](std::uint64_t epoch) { return installations_.ready(epoch, now); };
  session::Rendezvous::Step step;
  do {
    step = aggregator_.step(now, ready);
    for (const session::StopJob& stop : step.changes.stops) {
      surroundings_.say(id(), "ends a job");
      if (scenario_.checked) checked_->check(lanes_.counts());
      checked_->on_stop(stop.job_epoch);
      if (const auto job = jobs_.extract(stop.job_epoch)) job.mapped().served->stop();
      if (checked_->lanes_serving(stop.job_epoch) != 0) throw Violation("a lane serves a job that was stopped");
      installations_.remove(stop.job_epoch);
      aggregator_.on_stopped(stop.job_epoch);
    }
    for (const session::StartJob& each : step.changes.starts) start(each, now);
    install(now);
    for (session::Rendezvous::Answer& answer : step.answers) {
      const auto join = joins_.extract(answer.call).mapped();
      surroundings_.reply(id(), join.from, {join.number, id(), std::move(answer.outcome)});
    }
  } while (!step.empty());
  wake_ = std::min(aggregator_.next_timeout(), installations_.next_timeout(now));
}

// Corresponds to Server::Impl::begin in the binaries.
void AggregatorHost::start(const session::StartJob& start, Time now) {
  surroundings_.say(id(), "starts " + start.job);
  const std::uint64_t epoch = start.admission.job_epoch;
  std::unique_ptr<service::ServedJob> served = serve(start, now);
  if (!served) {
    if (checked_->lanes_serving(epoch) != 0) throw Violation("a lane serves a job that could not start");
    return aggregator_.on_start_failed(epoch, "there is no memory left", now);
  }
  const JobPlan& plan = scenario_.plan_of(start.job);
  if (session::lanes_of(start) != scenario_.lanes) throw Violation("a job has other lanes than the fewest of its ranks");
  checked_->on_start(start, plan);
  jobs_[epoch] = {start, std::move(served), static_cast<std::uint32_t>(&plan - scenario_.jobs.data())};
  aggregator_.on_started(start);
  if (!installations_.add(epoch, start.admission.placement, now, start.switches_needed, start.switch_patience)) {
    throw Violation("there are more switches than a process tells of jobs");
  }
}

std::unique_ptr<service::ServedJob> AggregatorHost::serve(const session::StartJob& start, Time now) {
  const bool lacks = now < no_memory_until_ && checked_->needs_memory(scenario_.plan_of(start.job));
  HostLane* const poor = lacks ? &lanes_[start.admission.job_epoch % session::lanes_of(start)] : nullptr;
  std::unique_ptr<service::ServedJob> served;
  if (poor != nullptr) poor->lack_memory(true);
  try {
    served = checked_->service().start(start);
  } catch (const std::bad_alloc&) {
  }
  if (poor != nullptr) poor->lack_memory(false);
  if (served != nullptr && poor != nullptr) throw Violation("a job has begun without memory on one of its lanes");
  return served;
}

std::vector<LeaveCall> AggregatorHost::memberships() const {
  std::vector<LeaveCall> all;
  for (const auto& [epoch, job] : jobs_) {
    const std::vector<std::uint32_t>& rank_epochs = job.start.admission.rank_epochs;
    for (std::uint32_t rank = 0; rank < rank_epochs.size(); ++rank) all.push_back({epoch, rank, rank_epochs[rank]});
  }
  return all;
}

// Corresponds to control/switch_teller.cc in the binaries.
void AggregatorHost::install(Time now) {
  for (const std::uint64_t epoch : installations_.take_moved()) {
    Running& job = jobs_.at(epoch);
    job.served->place(job.start, installations_.lanes_of(epoch));
    job.placed = true;
  }
  for (const auto& due : installations_.take_due(now)) {
    const HostId to = switch_host(scenario_, static_cast<std::uint32_t>(std::stoul(due.switch_id)));
    ControlCall call{next_call_++, id(), {}};
    switch (due.what) {
      case session::Installations::Ask::greet:
        call.what = GreetCall{};
        break;
      case session::Installations::Ask::uninstall:
        call.what = RemoveCall{due.job_epoch};
        break;
      case session::Installations::Ask::install: {
        const Running& job = jobs_.at(due.job_epoch);
        std::vector<Endpoint> own = lanes_.endpoints();
        own.resize(session::lanes_of(job.start));
        call.what = InstallCall{
            checked_->service().describe(job.start, due.index, due.again, installations_.lanes_of(due.job_epoch), own),
            job.plan};
        break;
      }
    }
    surroundings_.call(id(), to, std::move(call));
  }
  static_cast<void>(installations_.take_ready(now));  // settle() queries it separately
}

void AggregatorHost::check() const {
  if (!scenario_.checked) return;
  std::uint32_t charged = 0;
  std::size_t running = 0;
  for (const session::JobStatus& job : aggregator_.registry().jobs()) {
    if (!job.running) continue;
    ++running;
    charged += job.charged;
  }
  if (charged + aggregator_.registry().slots_free() != scenario_.switch_slots)
    throw Violation("slots were lost or given out twice");
  if (running != jobs_.size()) throw Violation("the registry runs other jobs than the lanes");
  for (const auto& [epoch, job] : jobs_) {
    const std::size_t serving = checked_->lanes_serving(epoch);
    const bool waits = serving == 0 && job.start.switches_needed && !job.placed;
    if (serving != session::lanes_of(job.start) && !waits)
      throw Violation("a lane serves other jobs than the registry runs");
  }
  checked_->check(lanes_.counts());
}

void AggregatorHost::check_idle() const {
  check();
  if (!jobs_.empty()) throw Violation("a job lives on after all of its ranks have ended");
  if (aggregator_.registry().slots_free() != scenario_.switch_slots)
    throw Violation("slots are in use after all jobs have ended");
  if (!joins_.empty()) throw Violation("a join was never answered");
}

void AggregatorHost::count_events(Tally& tally) const {
  checked_->count_events(tally);
}

}  // namespace netsum::sim
