// SwitchML at an aggregator, or at a switch below it, whose lanes are as chips would be (docs/protocol-switchml-chip.md).
#pragma once

#include "jobs/chip_profile.h"
#include "protocol/switchml/chip_switch.h"
#include "service/switchml_jobs.h"

namespace netsum::service {

class SwitchMlChipService final : public SwitchMlJobs<switchml::ChipSwitch> {
 public:
  explicit SwitchMlChipService(const Lanes& lanes);

  [[nodiscard]] std::optional<session::Profile> profile() const override { return jobs::said_profile({}); }
};

}  // namespace netsum::service
