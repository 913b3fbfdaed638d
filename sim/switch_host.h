// A host that runs a switch below the aggregators: it serves the installed jobs while their leases are renewed.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "sim/host.h"
#include "sim/protocol.h"
#include "sim/scenario.h"

namespace netsum::sim {

class SwitchHost final : public Host {
 public:
  // `life`: counts restarts.
  SwitchHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol, std::uint32_t life);

  void turn(std::span<const Datagram> datagrams, Time now) override;
  void on_call(const ControlCall& call, Time now) override;
  [[nodiscard]] Time next_wake() const override;

  void bypass(bool on) { checked_->bypass(on); }

  void check_idle() const;  // when all jobs have ended
  void count_events(Tally& tally) const;

 private:
  struct Served {
    std::unique_ptr<service::ServedJob> job;
    Time until{};  // the end of its lease
  };

  void install(const ControlCall& call, const InstallCall& install, Time now);
  void remove(std::uint64_t epoch);

  const Scenario& scenario_;
  const std::uint64_t instance_;
  const bool needed_;  // by jobs that are told to it
  HostLanes lanes_;
  std::unique_ptr<CheckedService> checked_;
  std::map<std::uint64_t, Served> jobs_;  // by epoch
  std::uint64_t turns_ = 0;
};

}  // namespace netsum::sim
