// Jobs of other aggregators at this switch: whose they are, until when, and what they are charged. Guarded by the control
// plane's lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "control/messages.h"
#include "session/registry.h"
#include "session/switch_message.h"

namespace netsum::control {

class Leases {
 public:
  explicit Leases(session::Registry& registry) : registry_(registry) {}

  // What one installation was charged anew: holders, and what each had before.
  using Charged = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

  // Before a job is installed, or again: why it cannot be. Else it is charged, until end() or give_back().
  [[nodiscard]] std::optional<Failure> charge(const std::string& tenant, std::uint64_t epoch,
                                              const session::InstallationCost& cost, Charged& charged);
  void give_back(const Charged& charged);  // it could not be installed
  void hold(const std::string& tenant, std::uint64_t epoch, Time until) { held_[epoch] = {until, tenant}; }
  void end(std::uint64_t epoch);

  [[nodiscard]] bool is_of(const std::string& tenant, std::uint64_t epoch) const;
  [[nodiscard]] std::vector<std::uint64_t> expired(Time at) const;
  [[nodiscard]] Time next() const;  // never: there is none

 private:
  // In the account of memory, where installations are numbered by their epochs: what all of them share.
  static constexpr std::uint64_t shared_holder = 0;
  static constexpr std::size_t most = 1024;

  struct Lease {
    Time until{};
    std::string tenant;
  };

  session::Registry& registry_;
  std::map<std::uint64_t, Lease> held_;
};

}  // namespace netsum::control
