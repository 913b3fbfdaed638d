#include "sim/switch_host.h"

#include <algorithm>

#include "session/installations.h"
#include "sim/aggregator_host.h"

namespace netsum::sim {

SwitchHost::SwitchHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                       std::uint32_t life)
    : Host(surroundings, id), scenario_(scenario), instance_(life + 1) {
  for (std::uint32_t i = 0; i < scenario.lanes; ++i) {
    const Endpoint self = endpoint_of(id, static_cast<std::uint16_t>(aggregator_port + i));
    lanes_.push_back({protocol.switch_lane(scenario), std::make_unique<HostSink>(surroundings, id, self)});
  }
}

void SwitchHost::turn(std::span<const Datagram> datagrams, Time now) {
  std::vector<RxView> views;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    views.clear();
    for (const Datagram& datagram : datagrams) {
      if (datagram.to.port == aggregator_port + i) views.push_back(view_of(datagram));
    }
    if (views.empty()) continue;
    lanes_[i].lane->on_packets(views, now, *lanes_[i].sink);
    lanes_[i].sink->flush();
    lanes_[i].lane->check();
  }
  std::erase_if(leases_, [&](const auto& lease) {
    if (lease.second > now) return false;
    for (Lane& lane : lanes_) lane.lane->remove(lease.first);
    return true;
  });
}

void SwitchHost::on_call(const ControlCall& call, Time now) {
  const std::uint32_t a_switch = id() - scenario_.aggregators;
  if (std::holds_alternative<GreetCall>(call.what)) {
    Greeted greeted{a_switch, {}, instance_};
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      greeted.lanes.push_back(endpoint_of(id(), static_cast<std::uint16_t>(aggregator_port + i)));
    }
    surroundings_.reply(id(), call.from, {call.number, id(), greeted});
  } else if (const auto* install = std::get_if<InstallCall>(&call.what)) {
    const std::uint64_t epoch = install->start.admission.job_epoch;
    Installed installed{epoch, a_switch, false, {}, instance_};
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const Endpoint aggregator = endpoint_of(call.from, static_cast<std::uint16_t>(aggregator_port + i));
      const LaneStart start{install->start, scenario_, scenario_.jobs[install->job], i, aggregator};
      // NetReduce's rings are assigned to lanes by number.
      SwitchLane& lane = *lanes_[install->start.switches_needed ? i : session::switch_lane(epoch, i, lanes_.size())].lane;
      if (!lane.install(start, *install)) installed.lost = true;
      installed.view.merge(lane.look(epoch));
    }
    if (!installed.lost) leases_[epoch] = now + session::installation_lease;
    surroundings_.reply(id(), call.from, {call.number, id(), installed});
  } else if (const auto* remove = std::get_if<RemoveCall>(&call.what)) {
    if (leases_.erase(remove->job_epoch) != 0) {
      for (Lane& lane : lanes_) lane.lane->remove(remove->job_epoch);
    }
    surroundings_.reply(id(), call.from, {call.number, id(), Removed{a_switch}});
  }
}

Time SwitchHost::next_wake() const {
  Time next = never;
  for (const auto& [epoch, until] : leases_) next = std::min(next, until);
  return next;
}

void SwitchHost::check_idle() const {
  if (!leases_.empty()) throw Violation("a switch knows a job that has ended");
  for (const Lane& lane : lanes_) lane.lane->check_idle();
}

void SwitchHost::count_events(Tally& tally) const {
  for (const Lane& lane : lanes_) lane.lane->count_events(tally);
}

}  // namespace netsum::sim
