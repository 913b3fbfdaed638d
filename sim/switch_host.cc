#include "sim/switch_host.h"

#include <algorithm>

#include "session/installations.h"
#include "sim/aggregator_host.h"

namespace netsum::sim {

SwitchHost::SwitchHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol)
    : Host(surroundings, id), scenario_(scenario) {
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
  if (const auto* install = std::get_if<InstallCall>(&call.what)) {
    const std::uint64_t epoch = install->start.admission.job_epoch;
    Installed installed{epoch, 0, false, {}};
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const Endpoint aggregator = endpoint_of(call.from, static_cast<std::uint16_t>(aggregator_port + i));
      const LaneStart start{install->start, scenario_, scenario_.jobs[install->job], i, aggregator};
      if (!lanes_[i].lane->install(start, install->a_switch, install->again)) installed.lost = true;
      installed.view.merge(lanes_[i].lane->look(epoch));
    }
    if (!installed.lost) leases_[epoch] = now + session::installation_lease;
    installed.a_switch =
        static_cast<std::uint32_t>(std::stoul(install->start.admission.placement.switches[install->a_switch]));
    surroundings_.reply(id(), call.from, {call.number, id(), installed});
  } else if (const auto* remove = std::get_if<RemoveCall>(&call.what)) {
    if (leases_.erase(remove->job_epoch) == 0) return;
    for (Lane& lane : lanes_) lane.lane->remove(remove->job_epoch);
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
