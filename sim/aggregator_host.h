// A host that runs one aggregator: the registry behind its control plane, and its data lanes.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "session/registry.h"
#include "sim/host.h"
#include "sim/protocol.h"
#include "sim/scenario.h"

namespace netsum::sim {

inline constexpr std::uint16_t aggregator_port = 7170;  // of lane 0

class AggregatorHost final : public Host {
 public:
  // `life`: counts restarts; no epoch of an earlier one comes again.
  AggregatorHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                 std::uint32_t life);

  void turn(std::span<const Datagram> datagrams, Time now) override;
  void on_call(const ControlCall& call, Time now) override;
  [[nodiscard]] Time next_wake() const override;

  void check() const;       // at every step
  void check_idle() const;  // when all jobs have ended
  void count_events(Tally& tally) const;

 private:
  struct Lane {
    std::unique_ptr<AggregatorLane> lane;
    std::unique_ptr<HostSink> sink;
  };
  struct Join {
    HostId from;
    std::uint64_t number;  // of the caller's call
  };

  void settle();  // carries out what the registry decided

  const Scenario& scenario_;
  session::Registry registry_;
  std::vector<Lane> lanes_;
  std::map<std::uint64_t, Join> joins_;  // by ticket
  std::size_t jobs_ = 0;
};

}  // namespace netsum::sim
