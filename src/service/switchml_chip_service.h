// SwitchML at an aggregator whose lanes are as chips would be (docs/protocol-switchml-chip.md).
#pragma once

#include <optional>
#include <vector>

#include "protocol/switchml/chip_switch.h"
#include "service/lane.h"
#include "service/service.h"
#include "session/chip_profile.h"

namespace netsum::service {

class SwitchMlChipService final : public Service {
 public:
  explicit SwitchMlChipService(const Lanes& lanes);

  void report(std::size_t lane, Counters& counters) const override;
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return session::switchml_chip_rules(); }
  [[nodiscard]] std::unique_ptr<ServedJob> start(const session::StartJob& start) override;

  [[nodiscard]] const switchml::ChipSwitch& at(std::size_t lane) const { return *switches_[lane]; }  // within its run()

 private:
  class Job;

  const Lanes lanes_;
  std::vector<switchml::ChipSwitch*> switches_;  // the lanes own them
};

}  // namespace netsum::service
