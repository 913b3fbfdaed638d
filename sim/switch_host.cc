#include "sim/switch_host.h"

#include <algorithm>
#include <utility>

#include "netsum/error.h"
#include "session/installations.h"

namespace netsum::sim {
SwitchHost::SwitchHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                       std::uint32_t life)
    : Host(surroundings, id),
      scenario_(scenario),
      instance_(life + 1),
      needed_(protocol.rules().switches_needed),
      lanes_(surroundings, id, scenario.lanes + scenario.spare_lanes),
      checked_(protocol.switch_service(scenario, id - scenario.aggregators, lanes_.for_services())) {}

void SwitchHost::turn(std::span<const Datagram> datagrams, Time now) {
  lanes_.turn(datagrams, now);
  if (scenario_.checked && ++turns_ % turns_per_check == 0) checked_->check(lanes_.counts());
  std::vector<std::uint64_t> ended;
  for (const auto& [epoch, job] : jobs_) {
    if (job.until <= now) ended.push_back(epoch);
  }
  for (const std::uint64_t epoch : ended) remove(epoch);
}

void SwitchHost::on_call(const ControlCall& call, Time now) {
  const std::uint32_t switch_id = id() - scenario_.aggregators;
  if (std::holds_alternative<GreetCall>(call.what)) {
    surroundings_.reply(id(), call.from, {call.number, id(), Greeted{switch_id, lanes_.endpoints(), instance_}});
  } else if (const auto* to_install = std::get_if<InstallCall>(&call.what)) {
    install(call, *to_install, now);
  } else if (std::holds_alternative<BeatCall>(call.what)) {  // of a rank that looks for this switch
    surroundings_.reply(id(), call.from, {call.number, id(), session::HeartbeatReply{}});
  } else if (const auto* to_remove = std::get_if<RemoveCall>(&call.what)) {
    remove(to_remove->job_epoch);
    surroundings_.reply(id(), call.from, {call.number, id(), Removed{switch_id}});
  }
}

// Corresponds to Node::Impl::install in the binaries.
void SwitchHost::install(const ControlCall& call, const InstallCall& install, Time now) {
  const std::uint64_t epoch = install.message.job_epoch;
  Installed installed{epoch, id() - scenario_.aggregators, false, false, {}, instance_};
  const auto former = jobs_.find(epoch);
  try {
    service::InstalledJob taken =
        checked_->service().install(install.message, former == jobs_.end() ? nullptr : former->second.job.get(),
                                    [](const std::vector<session::Destination>&) {});
    if (taken.job) checked_->on_install(install.message, scenario_.jobs[install.job]);
    Served& served = jobs_[epoch];
    if (taken.job) served.job = std::move(taken.job);
    served.until = now + session::installation_lease;
    installed.view = served.job->look();
  } catch (const Error& error) {
    installed.lost = needed_ && install.message.again;
    installed.declined = !needed_ && install.message.again && scenario_.security != PacketSecurity::none;
    if (!installed.lost && !installed.declined)
      throw Violation(std::string("a switch cannot take a job that it should: ") + error.what());
  }
  surroundings_.reply(id(), call.from, {call.number, id(), installed});
}

void SwitchHost::remove(std::uint64_t epoch) {
  const auto served = jobs_.find(epoch);
  if (served == jobs_.end()) return;
  if (scenario_.checked) checked_->check(lanes_.counts());
  checked_->on_stop(epoch);
  served->second.job->stop();
  if (checked_->lanes_serving(epoch) != 0) throw Violation("a lane serves a job that was removed");
  jobs_.erase(served);
}

Time SwitchHost::next_wake() const {
  Time next = never;
  for (const auto& [epoch, job] : jobs_) next = std::min(next, job.until);
  return next;
}

void SwitchHost::check_idle() const {
  if (!jobs_.empty()) throw Violation("a switch knows a job that has ended");
  checked_->check(lanes_.counts());
  checked_->check_idle();
}

void SwitchHost::count_events(Tally& tally) const {
  checked_->count_events(tally);
}

}  // namespace netsum::sim
