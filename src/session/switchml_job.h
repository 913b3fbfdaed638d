// From a SwitchML job's admission to the configuration of its switches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/switchml/switch.h"
#include "session/netreduce_job.h"
#include "session/registry.h"

namespace netsum::session {

// One lane of the aggregator where the ranks join: of the only switch, or of the root of the job's tree. Without a multicast
// group. `endpoint`: where the switches below receive; not called for a job without a tree.
[[nodiscard]] switchml::SwitchJobConfig switchml_job(const StartJob& start, std::size_t lane,
                                                     const SwitchEndpoint& endpoint);
// One lane of a switch below; `installation` has passed check().
[[nodiscard]] switchml::SwitchJobConfig switchml_job(const RingInstallation& installation, std::size_t lane);
// For all lanes of that switch.
[[nodiscard]] std::uint64_t switchml_memory_bytes(const RingInstallation& installation);

}  // namespace netsum::session
