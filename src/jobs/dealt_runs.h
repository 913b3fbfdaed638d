// How long the runs are in which SwitchML's lanes are dealt an operation: what ranks say of it as they join, as ranks that
// deal differently would wait for each other's chunks. At a chip as elsewhere.
#pragma once

#include <cstdint>

#include "protocol/switchml/stripes.h"
#include "session/protocol_rules.h"

namespace netsum::jobs {

struct RunAsk {
  std::uint32_t run_bytes = switchml::default_run_bytes;
};
[[nodiscard]] session::OwnPart own_part(const RunAsk& ask);

// That all ranks of a job say the same; one that says nothing has the default.
[[nodiscard]] session::ProtocolRules::Own same_runs();

}  // namespace netsum::jobs
