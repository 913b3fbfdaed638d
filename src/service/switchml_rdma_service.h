// SwitchML at an aggregator whose lanes end UC queue pairs (docs/protocol-switchml-rdma.md).
#pragma once

#include <string>

#include "protocol/switchml/rdma_switch.h"
#include "service/switchml_jobs.h"

namespace netsum::service {

class SwitchMlRdmaService final : public SwitchMlJobs<switchml::RdmaSwitch> {
 public:
  explicit SwitchMlRdmaService(const Lanes& lanes);

  [[nodiscard]] std::string takes() const override { return {}; }  // no trees
};

}  // namespace netsum::service
