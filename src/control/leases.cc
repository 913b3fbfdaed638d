#include "control/leases.h"

#include <algorithm>

namespace netsum::control {

std::optional<Failure> Leases::charge(const std::string& tenant, std::uint64_t epoch, const session::InstallationCost& cost,
                                      Charged& charged) {
  const auto lease = held_.find(epoch);
  if (lease != held_.end() && lease->second.tenant != tenant) {
    return Failure{ErrorKind::refused, "this job belongs to another tenant"};
  }
  if (lease == held_.end() && held_.size() >= most) {
    return Failure{ErrorKind::overloaded, "this switch serves " + std::to_string(most) + " jobs already, its maximum"};
  }
  if (lease == held_.end() && registry_.draining()) {
    return Failure{ErrorKind::refused, "an operator is draining this switch for maintenance: it takes no new jobs"};
  }
  session::MemoryAccount& memory = registry_.memory();
  const auto take = [&](std::uint64_t holder, const std::string& owner, std::uint64_t bytes, std::uint64_t quota) {
    const std::uint64_t before = memory.of(holder);
    if (bytes <= before) return std::string();
    std::string error = memory.check(owner, bytes - before, quota);
    if (!error.empty()) return error;
    memory.release(holder);
    memory.charge(holder, owner, bytes);
    charged.emplace_back(holder, before);
    return error;
  };
  std::string error = take(shared_holder, "", cost.shared, UINT64_MAX);
  if (error.empty()) error = take(epoch, tenant, cost.own, registry_.quota_of(tenant).memory_bytes);
  if (error.empty()) return std::nullopt;
  give_back(charged);
  return Failure{ErrorKind::refused, error};
}

void Leases::give_back(const Charged& charged) {
  for (const auto& [holder, before] : charged) {
    const bool kept = before != 0;  // what all share, which is nobody's
    registry_.memory().release(holder);
    if (kept) registry_.memory().charge(holder, "", before);
  }
}

void Leases::end(std::uint64_t epoch) {
  held_.erase(epoch);
  registry_.memory().release(epoch);
}

bool Leases::is_of(const std::string& tenant, std::uint64_t epoch) const {
  const auto lease = held_.find(epoch);
  return lease != held_.end() && lease->second.tenant == tenant;
}

std::vector<std::uint64_t> Leases::expired(Time at) const {
  std::vector<std::uint64_t> epochs;
  for (const auto& [epoch, lease] : held_) {
    if (lease.until <= at) epochs.push_back(epoch);
  }
  return epochs;
}

Time Leases::next() const {
  Time next = never;
  for (const auto& [epoch, lease] : held_) next = std::min(next, lease.until);
  return next;
}

}  // namespace netsum::control
