// From a SwitchML job's admission to the configuration of its switch.
#pragma once

#include <cstddef>

#include "protocol/switchml/switch.h"
#include "session/registry.h"

namespace netsum::session {

// One lane of the aggregator, without a multicast group.
[[nodiscard]] inline switchml::SwitchJobConfig switchml_job(const StartJob& start, std::size_t lane) {
  switchml::SwitchJobConfig config;
  config.epoch = start.admission.job_epoch;
  config.packet_elements = start.admission.packet_elements;
  config.slots = start.admission.slots;
  for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
    config.members.push_back({start.admission.rank_epochs[rank], start.endpoints[rank][lane], start.listens[rank]});
  }
  return config;
}

}  // namespace netsum::session
