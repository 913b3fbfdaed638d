#include "sim/aggregator_host.h"

#include <algorithm>

#include "sim/random.h"

namespace netsum::sim {
namespace {

session::RegistryConfig registry_config(const Scenario& scenario, HostId id, std::uint32_t life) {
  session::RegistryConfig config;
  config.lanes = scenario.lanes;
  config.slots = scenario.switch_slots;
  config.random = [random = Random(derive(derive(scenario.seed, 0xe90c), std::uint64_t{id} << 32 | life))]() mutable {
    return random.next();
  };
  return config;
}

}  // namespace

AggregatorHost::AggregatorHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                               std::uint32_t life)
    : Host(surroundings, id), scenario_(scenario), registry_(registry_config(scenario, id, life)) {
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
  if (now >= registry_.next_timeout()) {
    registry_.on_timer(now);
    settle();
  }
  check();
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
    const auto reply = registry_.heartbeat(beat->job_epoch, beat->rank, beat->rank_epoch, now);
    surroundings_.reply(id(), call.from, {call.number, id(), reply});
  } else if (const auto* leave = std::get_if<LeaveCall>(&call.what)) {
    registry_.leave(leave->job_epoch, leave->rank, leave->rank_epoch, now);
  }
  settle();
  check();
}

void AggregatorHost::settle() {
  for (const session::StartJob& start : registry_.take_starts()) {
    surroundings_.say(id(), "starts " + start.job);
    const auto plan = std::find_if(scenario_.jobs.begin(), scenario_.jobs.end(),
                                   [&](const JobPlan& job) { return job.name == start.job; });
    for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i].lane->start_job(start, i, !plan->mismatch);
    ++jobs_;
  }
  for (auto join = joins_.begin(); join != joins_.end();) {
    const auto outcome = registry_.join_outcome(join->first);
    if (!outcome) {
      ++join;
      continue;
    }
    surroundings_.reply(id(), join->second.from, {join->second.number, id(), *outcome});
    join = joins_.erase(join);
  }
  for (const session::StopJob& stop : registry_.take_stops()) {
    surroundings_.say(id(), "ends a job");
    for (Lane& lane : lanes_) lane.lane->stop_job(stop.job_epoch);
    --jobs_;
  }
}

Time AggregatorHost::next_wake() const {
  Time next = registry_.next_timeout();
  for (const Lane& lane : lanes_) next = std::min(next, lane.lane->next_timeout());
  return next;
}

void AggregatorHost::check() const {
  std::uint32_t charged = 0;
  std::size_t running = 0;
  for (const session::JobStatus& job : registry_.jobs()) {
    if (!job.running) continue;
    ++running;
    charged += job.slots * std::max(1U, (job.packet_elements + 255) / 256) * scenario_.lanes;
  }
  if (charged + registry_.slots_free() != scenario_.switch_slots) throw Violation("slots were lost or given out twice");
  if (running != jobs_) throw Violation("the registry runs other jobs than the lanes");
  for (const Lane& lane : lanes_) {
    if (lane.lane->jobs() != jobs_) throw Violation("a lane serves other jobs than the registry runs");
    lane.lane->check();
  }
}

void AggregatorHost::check_idle() const {
  check();
  if (jobs_ != 0) throw Violation("a job lives on after all of its ranks have ended");
  if (registry_.slots_free() != scenario_.switch_slots) throw Violation("slots are in use after all jobs have ended");
  if (!joins_.empty()) throw Violation("a join was never answered");
}

void AggregatorHost::count_events(Tally& tally) const {
  for (const Lane& lane : lanes_) lane.lane->count_events(tally);
}

}  // namespace netsum::sim
