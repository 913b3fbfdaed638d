// SwitchML at an aggregator, or at a switch below it: each lane has a part of each job's slots.
#pragma once

#include "protocol/switchml/switch.h"
#include "service/switchml_jobs.h"

namespace netsum::service {

class SwitchMlService final : public SwitchMlJobs<switchml::Switch> {
 public:
  using Surroundings = SwitchMlSurroundings;
  explicit SwitchMlService(const Lanes& lanes, const Surroundings& surroundings = {});
};

}  // namespace netsum::service
