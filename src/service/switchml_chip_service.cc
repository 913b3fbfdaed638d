#include "service/switchml_chip_service.h"

#include "jobs/chip_profile.h"

namespace netsum::service {
namespace {

class ChipFormat final : public Format {
 public:
  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == wire::chip::format; }
  void on_packets(std::span<const RxView> packets, bool, Time now, Sink& sink) override {
    machine.on_packets(packets, now, sink);
  }
  [[nodiscard]] std::uint64_t strangers() const override { return machine.counters().strangers(); }

  switchml::ChipSwitch machine;
};

std::vector<switchml::ChipSwitch*> machines_on(const Lanes& lanes) {
  std::vector<switchml::ChipSwitch*> machines;
  for (Lane* const lane : lanes) machines.push_back(&serve<ChipFormat>(*lane)->machine);
  return machines;
}

}  // namespace

SwitchMlChipService::SwitchMlChipService(const Lanes& lanes)
    : SwitchMlJobs(jobs::switchml_chip_rules(), lanes, machines_on(lanes), {}) {}

}  // namespace netsum::service
