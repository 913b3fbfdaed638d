#include "session/installations.h"

#include <algorithm>
#include <set>
#include <utility>

namespace netsum::session {

void Installations::keep(const std::string& switch_id, Time now) {
  Switch& kept = switches_[switch_id];
  ++kept.users;
  kept.rests_until = now;
}

bool Installations::add(std::uint64_t job_epoch, const Placement& placement, Time now, bool needed, Duration patience) {
  const std::set<std::string> names(placement.switches.begin(), placement.switches.end());
  const auto strangers = static_cast<std::size_t>(
      std::count_if(names.begin(), names.end(), [&](const std::string& name) { return !switches_.contains(name); }));
  if (switches_.size() + strangers > most_switches) return false;
  Job& job = jobs_[job_epoch];
  job.ready_at = now + installation_patience;
  job.needed = needed;
  job.patience = patience;
  for (std::size_t i = 0; i < placement.switches.size(); ++i) {
    Switch& node = switches_[placement.switches[i]];
    ++node.users;
    job.moved |= !node.lanes.empty();
    job.members.push_back({placement.switches[i], placement.parent_of_switch[i], now, now});
  }
  if (needed) job.moved = all_known(job);
  return true;
}

void Installations::remove(std::uint64_t job_epoch) {
  auto job = jobs_.extract(job_epoch);
  if (job.empty()) return;
  for (const Member& member : job.mapped().members) {
    // A switch that does not answer forgets the job when its lease ends.
    if (Switch& node = switches_.at(member.name); node.reached) node.parting.push_back(job_epoch);
    leave(member.name);
  }
}

void Installations::leave(const std::string& switch_id) {
  const auto found = switches_.find(switch_id);
  --found->second.users;
  if (found->second.users == 0 && found->second.parting.empty() && !found->second.busy_until) switches_.erase(found);
}

void Installations::answered(Switch& node) {
  node.busy_until.reset();
  node.rest = installation_retry;
  node.rests_until = Time{};
}

void Installations::on_greeted(const std::string& name, const std::vector<Endpoint>& lanes, std::uint64_t instance,
                               Time now) {
  const auto found = switches_.find(name);
  if (found == switches_.end()) return;
  Switch& node = found->second;
  answered(node);
  node.reached = true;
  const bool moved = node.lanes != lanes, restarted = node.instance != instance;
  node.instance = instance;
  node.lanes = lanes;
  for (auto& [epoch, job] : jobs_) {
    for (std::size_t i = 0; i < job.members.size(); ++i) {
      Member& member = job.members[i];
      if (member.name != name) continue;
      if (moved || restarted) member.due = now;
      if (!moved) continue;
      job.moved = !job.needed || all_known(job);
      for (std::size_t j = 0; j < job.members.size(); ++j) {
        Member& other = job.members[j];
        if (j != member.parent && other.parent != i) continue;
        other.due = now;
        ++other.news;
      }
    }
  }
}

Installations::Member* Installations::find(std::uint64_t job_epoch, const std::string& switch_id) {
  const auto job = jobs_.find(job_epoch);
  if (job == jobs_.end()) return nullptr;
  auto& members = job->second.members;
  const auto member = std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.name == switch_id; });
  return member == members.end() ? nullptr : &*member;
}

void Installations::on_installed(std::uint64_t job_epoch, const std::string& name, std::uint64_t instance, Time now) {
  const auto found = switches_.find(name);
  if (found == switches_.end()) return;
  answered(found->second);
  // Another instance answers at its address, and may receive elsewhere.
  if (found->second.instance != instance) found->second.reached = false;
  if (Member* const member = find(job_epoch, name)) {
    member->told = true;
    member->heard = now;
    member->closed = false;
    // A neighbour may have been heard of while the message was under way: its endpoint is not in there.
    member->known = member->sent;
    const Duration patience = jobs_.at(job_epoch).patience;
    const Duration interval = patience == Duration{} ? installation_interval : std::min(installation_interval, patience / 5);
    member->due = member->known == member->news ? now + interval : now;
  }
}

void Installations::on_refused(std::uint64_t job_epoch, const std::string& name, Time now) {
  const auto found = switches_.find(name);
  if (found == switches_.end()) return;
  answered(found->second);
  if (Member* const member = find(job_epoch, name)) member->due = now + installation_interval;
}

void Installations::on_uninstalled(const std::string& name) {
  const auto found = switches_.find(name);
  if (found != switches_.end()) answered(found->second);
}

void Installations::on_failure(const std::string& name, Time now, bool closed) {
  const auto found = switches_.find(name);
  if (found == switches_.end()) return;
  for (auto& [epoch, job] : jobs_) {
    for (Member& member : job.members) {
      if (closed && member.name == name) member.closed = true;
    }
  }
  Switch& node = found->second;
  node.busy_until.reset();
  node.reached = false;  // it may come back at other endpoints
  node.parting.clear();
  node.rests_until = now + node.rest;
  node.rest = std::min(node.rest * 2, installation_rest);
}

std::vector<std::uint64_t> Installations::take_moved() {
  std::vector<std::uint64_t> moved;
  for (auto& [epoch, job] : jobs_) {
    if (std::exchange(job.moved, false)) moved.push_back(epoch);
  }
  return moved;
}

std::vector<std::vector<Endpoint>> Installations::lanes_of(std::uint64_t job_epoch) const {
  std::vector<std::vector<Endpoint>> lanes;
  const auto job = jobs_.find(job_epoch);
  if (job == jobs_.end()) return lanes;
  for (const Member& member : job->second.members) lanes.push_back(switches_.at(member.name).lanes);
  return lanes;
}

bool Installations::all_known(const Job& job) const {
  return std::none_of(job.members.begin(), job.members.end(),
                      [&](const Member& member) { return switches_.at(member.name).lanes.empty(); });
}

bool Installations::may_be_told(const Job& job, const Member& member) const {
  if (member.parent != Placement::at_server && !job.members[member.parent].told) return false;
  return !job.needed || all_known(job);
}

std::vector<Installations::Due> Installations::take_due(Time now) {
  // By switch: the install that has been due for longest.
  std::map<std::string, std::pair<Time, Due>> installs;
  for (const auto& [epoch, job] : jobs_) {
    for (std::uint32_t i = 0; i < job.members.size(); ++i) {
      const Member& member = job.members[i];
      const std::uint64_t instance = switches_.at(member.name).instance;
      // An answer may have been lost: a switch that was started again since the first message may have known the job.
      const bool again = member.told || (!job.needed && member.first_told && *member.first_told != instance);
      if (member.due > now || !switches_.at(member.name).reached || !may_be_told(job, member)) continue;
      const auto [found, first] = installs.try_emplace(member.name);
      if (!first && found->second.first <= member.due) continue;
      found->second = {member.due, {Ask::install, member.name, epoch, i, again}};
    }
  }
  std::vector<Due> due;
  for (auto next = switches_.begin(); next != switches_.end();) {
    const auto here = next++;
    const std::string& name = here->first;
    Switch& node = here->second;
    if (node.busy_until && *node.busy_until <= now) on_failure(name, now);
    if (node.users == 0 && node.parting.empty() && !node.busy_until) {
      switches_.erase(here);
      continue;
    }
    if (node.busy_until || node.rests_until > now) continue;
    if (!node.reached) {
      if (node.users == 0) continue;
      due.push_back({Ask::greet, name});
    } else if (!node.parting.empty()) {
      due.push_back({Ask::uninstall, name, node.parting.back()});
      node.parting.pop_back();
    } else if (const auto install = installs.find(name); install != installs.end()) {
      Member& told = jobs_.at(install->second.second.job_epoch).members[install->second.second.index];
      if (!told.first_told) told.first_told = node.instance;
      told.sent = told.news;
      due.push_back(std::move(install->second.second));
    } else {
      continue;
    }
    node.busy_until = now + installation_deadline;
  }
  return due;
}

bool Installations::ready(const Job& job, Time now) {
  if (!job.needed && now >= job.ready_at) return true;
  return std::all_of(job.members.begin(), job.members.end(),
                     [](const Member& member) { return member.told && member.known == member.news; });
}

bool Installations::ready(std::uint64_t job_epoch, Time now) const {
  const auto job = jobs_.find(job_epoch);
  return job == jobs_.end() || ready(job->second, now);
}

std::vector<std::uint64_t> Installations::take_ready(Time now) {
  std::vector<std::uint64_t> list;
  for (auto& [epoch, job] : jobs_) {
    if (job.said_ready || !ready(job, now)) continue;
    job.said_ready = true;
    list.push_back(epoch);
  }
  return list;
}

// Where ranks can go around a switch, that begins at once: one that was started again has lost its sums all the same.
Time Installations::silent_at(const Job& job, const Member& member) {
  if (job.patience == Duration{} || !member.told) return member.heard + installation_lease;
  return member.closed ? member.heard : member.heard + std::min(job.patience, installation_lease);
}

std::vector<Installations::Due> Installations::take_silent(Time now) {
  std::vector<Due> list;
  for (auto& [epoch, job] : jobs_) {
    if (!job.needed) continue;
    for (std::uint32_t i = 0; i < job.members.size(); ++i) {
      Member& member = job.members[i];
      if (member.silent || now < silent_at(job, member)) continue;
      member.silent = true;
      list.push_back({Ask::install, member.name, epoch, i, member.told, now - member.heard, member.closed});
    }
  }
  return list;
}

bool Installations::parting() const {
  return std::any_of(switches_.begin(), switches_.end(), [](const auto& entry) { return !entry.second.parting.empty(); });
}

Time Installations::next_timeout(Time now) const {
  Time next = never;
  for (const auto& [name, node] : switches_) {
    if (node.busy_until) {
      next = std::min(next, *node.busy_until);
    } else if (!node.reached ? node.users != 0 : !node.parting.empty()) {
      next = std::min(next, std::max(now, node.rests_until));
    }
  }
  for (const auto& [epoch, job] : jobs_) {
    if (!job.said_ready) next = std::min(next, ready(job, now) ? now : job.needed ? never : job.ready_at);
    for (const Member& member : job.members) {
      if (job.needed && !member.silent) next = std::min(next, silent_at(job, member));
      const Switch& node = switches_.at(member.name);
      if (!node.reached || node.busy_until || !may_be_told(job, member)) continue;
      next = std::min(next, std::max(member.due, node.rests_until));
    }
  }
  return next;
}

SwitchEndpoint switch_endpoints(std::vector<std::vector<Endpoint>> lanes) {
  return [lanes = std::move(lanes)](std::uint32_t switch_id, std::size_t lane) {
    return switch_id < lanes.size() && lane < lanes[switch_id].size() ? lanes[switch_id][lane] : Endpoint{};
  };
}

}  // namespace netsum::session
