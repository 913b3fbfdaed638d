// The one account of the memory that a daemon gives to jobs, in bytes: admission charges it before anything is allocated,
// and `netsum status` shows it. A request for more than is left, or more than its tenant may have, is refused with a reason.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "session/words.h"

namespace netsum::session {

class MemoryAccount {
 public:
  explicit MemoryAccount(std::uint64_t limit = UINT64_MAX) : limit_(limit) {}

  // Empty, or why `bytes` more are refused; `quota`: for all of the tenant's charges.
  [[nodiscard]] std::string check(const std::string& tenant, std::uint64_t bytes, std::uint64_t quota) const {
    if (bytes > quota || used_by(tenant) > quota - bytes) {
      return "it needs " + in_bytes(bytes) + " of memory, and tenant '" + tenant + "' has " + in_bytes(used_by(tenant)) +
             " of its " + in_bytes(quota) + " in use: ask for fewer slots, or end another job";
    }
    if (bytes > free()) {
      return "it needs " + in_bytes(bytes) + " of memory, and " + in_bytes(free()) + " of this daemon's " +
             in_bytes(limit_) + " are free: ask for fewer slots, or start the daemon with a larger --memory-mib";
    }
    return "";
  }
  // `holder`: a number unique to the job, with no other charge. Call only if check() returned an empty string.
  void charge(std::uint64_t holder, const std::string& tenant, std::uint64_t bytes) {
    charges_.emplace(holder, Charge{tenant, bytes});
    tenants_[tenant] += bytes;
    used_ += bytes;
  }
  void release(std::uint64_t holder) {
    const auto charge = charges_.extract(holder);
    if (charge.empty()) return;
    const auto& [tenant, bytes] = charge.mapped();
    used_ -= bytes;
    const auto of_tenant = tenants_.find(tenant);
    of_tenant->second -= bytes;
    if (of_tenant->second == 0) tenants_.erase(of_tenant);
  }

  [[nodiscard]] std::uint64_t limit() const { return limit_; }
  [[nodiscard]] std::uint64_t used() const { return used_; }
  [[nodiscard]] std::uint64_t free() const { return limit_ - used_; }
  [[nodiscard]] std::uint64_t used_by(const std::string& tenant) const {
    const auto found = tenants_.find(tenant);
    return found == tenants_.end() ? 0 : found->second;
  }
  [[nodiscard]] std::uint64_t of(std::uint64_t holder) const {
    const auto found = charges_.find(holder);
    return found == charges_.end() ? 0 : found->second.bytes;
  }

 private:
  struct Charge {
    std::string tenant;
    std::uint64_t bytes = 0;
  };
  std::uint64_t limit_, used_ = 0;
  std::map<std::uint64_t, Charge> charges_;
  std::map<std::string, std::uint64_t> tenants_;
};

}  // namespace netsum::session
