// NetReduce at an aggregator: rings of RoCEv2 connections, one per lane, whole or as part of a tree of switches. The same at
// a bump in the wire, or at bumps in several racks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "jobs/netreduce_job.h"
#include "protocol/netreduce/tunnel.h"
#include "seal/hops.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::service {

class NetReduceService final : public Service {
 public:
  // The order of a job's sums; empty: the ring's.
  using OrderOf = std::function<netreduce::Order(const std::string& job)>;
  explicit NetReduceService(const Lanes& lanes, OrderOf order_of = {});

  // What a bump in the wire has in place of lanes' sockets.
  struct Wire {
    netreduce::Tunnel& tunnel;  // used within the lane's run()
    bool racks = false;         // as bump_rules()
    // Throws Error: refused. Called before the ring is served.
    std::function<void(const netreduce::RingConfig&)> check{};
    // The ring is served, but its ranks do not send yet: they do once this returns.
    std::function<void(const netreduce::RingConfig&)> record{};
  };
  NetReduceService(Lane& lane, Wire wire, OrderOf order_of = {});

  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override {
    return wire_ ? jobs::bump_rules(wire_->racks) : jobs::netreduce_rules();
  }
  [[nodiscard]] std::unique_ptr<ServedJob> start(const session::StartJob& start) override;
  [[nodiscard]] session::SwitchMessage describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                const session::SwitchLanes& switches,
                                                std::span<const Endpoint> own) const override;
  [[nodiscard]] std::string takes() const override { return !wire_ || wire_->racks ? rules()->name : std::string(); }
  [[nodiscard]] session::InstallationCost cost(const session::SwitchMessage& message) const override;
  [[nodiscard]] InstalledJob install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove) override;

  [[nodiscard]] const netreduce::Tunnel& at(std::size_t lane) const { return *tunnels_[lane]; }  // within its run()

 private:
  class Job;

  [[nodiscard]] netreduce::Order order_of(const session::StartJob& start) const {
    return order_of_ ? order_of_(start.job) : netreduce::Order::ring;
  }

  // Of each lane, where the job's ranks join.
  [[nodiscard]] std::vector<netreduce::TunnelRing> rings_of(const session::StartJob& start,
                                                            const session::SwitchEndpoint& switches) const;

  [[nodiscard]] std::vector<netreduce::TunnelRing> rings_of(const jobs::TreeInstallation& installation) const;

  const Lanes lanes_;
  const std::optional<Wire> wire_;
  const OrderOf order_of_;
  std::vector<netreduce::Tunnel*> tunnels_;  // the lanes own them, or the bump
  std::vector<seal::Hops*> hops_;            // the lanes own them; empty at a bump
};

}  // namespace netsum::service
