#include "sim/aggregator_host.h"

#include <algorithm>

#include "sim/random.h"

namespace netsum::sim {
namespace {

session::RegistryConfig registry_config(const Scenario& scenario, const Protocol& protocol, HostId id, std::uint32_t life) {
  session::RegistryConfig config;
  config.protocols = {protocol.rules()};
  for (std::size_t i = 0; i < scenario.parent_of_switch.size(); ++i) {
    const std::uint32_t parent = scenario.parent_of_switch[i];
    if (parent != session::Placement::at_server) config.switch_parents[std::to_string(i)] = std::to_string(parent);
  }
  config.lanes = scenario.lanes;
  config.slots = scenario.switch_slots;
  config.random = [random = Random(derive(derive(scenario.seed, 0xe90c), std::uint64_t{id} << 32 | life))]() mutable {
    return random.next();
  };
  return config;
}

}  // namespace

session::SwitchEndpoint switch_endpoints(const Scenario& scenario, const session::Placement& placement) {
  return [&](std::uint32_t a_switch, std::size_t lane) {
    const auto index = static_cast<std::uint32_t>(std::stoul(placement.switches[a_switch]));
    return endpoint_of(switch_host(scenario, index), static_cast<std::uint16_t>(aggregator_port + lane));
  };
}

AggregatorHost::AggregatorHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                               std::uint32_t life)
    : Host(surroundings, id), scenario_(scenario), registry_(registry_config(scenario, protocol, id, life)) {
  for (std::uint32_t i = 0; i < scenario.lanes; ++i) {
    const Endpoint self = endpoint_of(id, static_cast<std::uint16_t>(aggregator_port + i));
    lanes_.push_back({protocol.aggregator_lane(), std::make_unique<HostSink>(surroundings, id, self)});
  }
}

void AggregatorHost::turn(std::span<const Datagram> datagrams, Time now) {
  std::vector<RxView> views;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    views.clear();
    for (const Datagram& datagram : datagrams) {
      if (datagram.to.port == aggregator_port + i) views.push_back(view_of(datagram));
    }
    if (!views.empty()) lane.lane->on_packets(views, now, *lane.sink);
    if (now >= lane.lane->next_timeout()) lane.lane->on_timer(now, *lane.sink);
    lane.sink->flush();
  }
  settle(now);  // first: ranks that were told nothing cannot have been silent
  if (now >= registry_.next_timeout()) {
    registry_.on_timer(now);
    settle(now);
  }
  check();
}

void AggregatorHost::on_reply(const ControlReply& reply, Time now) {
  const auto& installed = std::get<Installed>(reply.what);
  const std::string name = std::to_string(installed.a_switch);
  if (installed.lost) {
    registry_.fail(installed.job_epoch, "switch " + name + " has lost its sums", now);
  } else {
    installations_.on_installed(installed.job_epoch, name, now);
    if (const auto job = jobs_.find(installed.job_epoch); job != jobs_.end()) job->second.views[name] = installed.view;
  }
  settle(now);
}

// What collective/aggregator.cc does in the binaries.
session::JobView AggregatorHost::look(std::uint64_t epoch) const {
  session::JobView view;
  for (const Lane& lane : lanes_) {
    view.merge(lane.lane->look(epoch));
  }
  const auto job = jobs_.find(epoch);
  if (job == jobs_.end()) return view;
  for (const auto& [name, of_switch] : job->second.views) {
    if (!of_switch.mismatch.empty()) view.mismatch = of_switch.mismatch;
    view.missing = session::refined(view.missing, job->second.start.admission.placement, name, of_switch.missing);
  }
  return view;
}

void AggregatorHost::on_call(const ControlCall& call, Time now) {
  if (const auto* join = std::get_if<JoinCall>(&call.what)) {
    const std::uint64_t ticket = registry_.join(join->request, now);
    joins_[ticket] = {call.from, call.number};
  } else if (const auto* cancel = std::get_if<CancelCall>(&call.what)) {
    const auto found = std::find_if(joins_.begin(), joins_.end(), [&](const auto& entry) {
      return entry.second.from == call.from && entry.second.number == cancel->join;
    });
    if (found == joins_.end()) return;
    static_cast<void>(registry_.cancel_join(found->first, now));
    joins_.erase(found);
  } else if (const auto* beat = std::get_if<BeatCall>(&call.what)) {
    const session::JobView view = look(beat->job_epoch);
    if (!view.mismatch.empty()) {
      registry_.fail_mismatch(beat->job_epoch, view.mismatch, now);
      settle(now);
    }
    auto reply = registry_.heartbeat(beat->job_epoch, beat->rank, beat->rank_epoch, now);
    reply.missing = view.missing;
    surroundings_.reply(id(), call.from, {call.number, id(), reply});
  } else if (const auto* leave = std::get_if<LeaveCall>(&call.what)) {
    registry_.leave(leave->job_epoch, leave->rank, leave->rank_epoch, now);
  }
  settle(now);
  check();
}

void AggregatorHost::settle(Time now) {
  for (const auto& silent : installations_.silent(now)) {
    registry_.fail(silent.job_epoch, "switch " + silent.a_switch + " has not answered", now);
  }
  for (const session::StartJob& start : registry_.take_starts()) {
    surroundings_.say(id(), "starts " + start.job);
    const auto plan = std::find_if(scenario_.jobs.begin(), scenario_.jobs.end(),
                                   [&](const JobPlan& job) { return job.name == start.job; });
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      lanes_[i].lane->start_job(
          {start, scenario_, *plan, i, endpoint_of(id(), static_cast<std::uint16_t>(aggregator_port + i))});
    }
    jobs_[start.admission.job_epoch] = {start, static_cast<std::uint32_t>(plan - scenario_.jobs.begin()), {}};
    installations_.add(start.admission.job_epoch, start.admission.placement.switches, now, start.switches_needed);
  }
  for (auto join = joins_.begin(); join != joins_.end();) {
    const auto outcome = registry_.join_outcome(join->first);
    if (!outcome) {
      ++join;
      continue;
    }
    const ControlReply reply{join->second.number, id(), *outcome};
    answers_.push_back({outcome->admission ? outcome->admission->job_epoch : 0, join->second.from, reply});
    join = joins_.erase(join);
  }
  for (const session::StopJob& stop : registry_.take_stops()) {
    surroundings_.say(id(), "ends a job");
    for (Lane& lane : lanes_) lane.lane->stop_job(stop.job_epoch);
    for (const std::string& name : jobs_.at(stop.job_epoch).start.admission.placement.switches) {
      surroundings_.call(id(), switch_host(scenario_, static_cast<std::uint32_t>(std::stoul(name))),
                         {next_call_++, id(), RemoveCall{stop.job_epoch}});
    }
    installations_.remove(stop.job_epoch);
    jobs_.erase(stop.job_epoch);
  }
  install(now);
}

void AggregatorHost::install(Time now) {
  for (const auto& due : installations_.take_due(now)) {
    const Running& job = jobs_.at(due.job_epoch);
    const auto& names = job.start.admission.placement.switches;
    const auto index = static_cast<std::uint32_t>(std::find(names.begin(), names.end(), due.a_switch) - names.begin());
    surroundings_.call(id(), switch_host(scenario_, static_cast<std::uint32_t>(std::stoul(due.a_switch))),
                       {next_call_++, id(), InstallCall{job.start, job.plan, index, due.again}});
  }
  std::erase_if(answers_, [&](const Answer& answer) {
    if (!installations_.ready(answer.job_epoch, now)) return false;
    registry_.admission_told(answer.job_epoch, now);
    surroundings_.reply(id(), answer.to, answer.reply);
    return true;
  });
  wake_ = installations_.next_timeout(now);
}

Time AggregatorHost::next_wake() const {
  Time next = std::min(registry_.next_timeout(), wake_);
  for (const Lane& lane : lanes_) next = std::min(next, lane.lane->next_timeout());
  return next;
}

void AggregatorHost::check() const {
  std::uint32_t charged = 0;
  std::size_t running = 0;
  for (const session::JobStatus& job : registry_.jobs()) {
    if (!job.running) continue;
    ++running;
    charged += job.charged;
  }
  if (charged + registry_.slots_free() != scenario_.switch_slots) throw Violation("slots were lost or given out twice");
  if (running != jobs_.size()) throw Violation("the registry runs other jobs than the lanes");
  for (const Lane& lane : lanes_) {
    if (lane.lane->jobs() != jobs_.size()) throw Violation("a lane serves other jobs than the registry runs");
    lane.lane->check();
  }
}

void AggregatorHost::check_idle() const {
  check();
  if (!jobs_.empty()) throw Violation("a job lives on after all of its ranks have ended");
  if (registry_.slots_free() != scenario_.switch_slots) throw Violation("slots are in use after all jobs have ended");
  if (!joins_.empty()) throw Violation("a join was never answered");
}

void AggregatorHost::count_events(Tally& tally) const {
  for (const Lane& lane : lanes_) lane.lane->count_events(tally);
}

}  // namespace netsum::sim
