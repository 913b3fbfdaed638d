#include "service/switchml_rdma_service.h"

#include "jobs/switchml_rdma.h"

namespace netsum::service {
namespace {

class RdmaFormat final : public Format {
 public:
  [[nodiscard]] bool takes(std::uint8_t first) const override { return first >> 4 == 4 || first >> 4 == 6; }  // IP headers
  void on_packets(std::span<const RxView> packets, bool, Time now, Sink& sink) override {
    machine.on_packets(packets, now, sink);
  }
  [[nodiscard]] std::uint64_t strangers() const override { return machine.counters().strangers(); }

  switchml::RdmaSwitch machine;
};

std::vector<switchml::RdmaSwitch*> rdma_switches_on(const Lanes& lanes) {
  std::vector<switchml::RdmaSwitch*> machines;
  for (Lane* const lane : lanes) machines.push_back(&serve<RdmaFormat>(*lane)->machine);
  return machines;
}

}  // namespace

SwitchMlRdmaService::SwitchMlRdmaService(const Lanes& lanes)
    : SwitchMlJobs(jobs::switchml_rdma_rules(), lanes, rdma_switches_on(lanes), {}) {}

}  // namespace netsum::service
