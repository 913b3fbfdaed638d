// The parameter server in the simulator: its checks, its tap, and forged packets.
#pragma once

#include "sim/protocol.h"

namespace netsum::baseline {

class Simulated final : public sim::Protocol {
 public:
  [[nodiscard]] session::ProtocolRules rules() const override;
  [[nodiscard]] bool measures() const override { return false; }
  void draw(sim::Scenario& scenario) const override;
  [[nodiscard]] std::unique_ptr<sim::CheckedService> aggregator_service(const sim::Scenario& scenario,
                                                                        const service::Lanes& lanes) const override;
  [[nodiscard]] std::unique_ptr<protocol::WorkerLane> worker_lane(const sim::WorkerLanePlan& plan) const override;
  [[nodiscard]] std::unique_ptr<sim::PathProbe> path_probe(const Endpoint&, std::uint32_t) const override { return nullptr; }
  [[nodiscard]] std::unique_ptr<sim::Tap> tap(const sim::Scenario&) const override;
  [[nodiscard]] sim::Forgery forge(std::span<const std::byte> overheard, sim::Random& random) const override;
  [[nodiscard]] std::string describe(std::span<const std::byte> datagram) const override;
};

}  // namespace netsum::baseline
