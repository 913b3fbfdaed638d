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

  void bypass(bool on) {
    for (Lane& lane : lanes_) lane.lane->bypass(on);
  }

  void check_idle() const;  // when all jobs have ended
  void count_events(Tally& tally) const;

 private:
  struct Lane {
    std::unique_ptr<SwitchLane> lane;
    std::unique_ptr<HostSink> sink;
  };

  const Scenario& scenario_;
  const std::uint64_t instance_;
  std::vector<Lane> lanes_;
  std::map<std::uint64_t, Time> leases_;  // by job epoch: when the job is removed
};

}  // namespace netsum::sim
