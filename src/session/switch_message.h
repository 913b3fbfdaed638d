// What the switches below an aggregator say of themselves, and what they are told.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "base/endpoint.h"
#include "session/netreduce_job.h"
#include "session/protocol_rules.h"

namespace netsum::session {

// By switch of a placement: its lanes' endpoints; none: not known yet.
using SwitchLanes = std::vector<std::vector<Endpoint>>;

// A job, as a switch is told of it.
using SwitchMessage = std::variant<Installation, TreeInstallation>;

[[nodiscard]] inline std::uint64_t epoch_of(const SwitchMessage& message) {
  if (const auto* installation = std::get_if<Installation>(&message)) return installation->job_epoch;
  return std::get<TreeInstallation>(message).start.admission.job_epoch;
}

}  // namespace netsum::session
