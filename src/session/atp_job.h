// From an ATP job's placement to the configuration of its parameter server, switches and ranks (ATP §3.2: dynamic job
// setup).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"
#include "protocol/atp/topology.h"
#include "protocol/atp/worker.h"
#include "protocol/atp/worker_lane.h"
#include "seal/hops.h"
#include "session/protocol_rules.h"
#include "session/registry.h"

namespace netsum::session {

[[nodiscard]] ProtocolRules atp_rules();

[[nodiscard]] atp::Topology topology_of(const Placement& placement);

struct AtpSettings {
  atp::Indexing indexing = atp::Indexing::rehash;
  atp::Overflow overflow = atp::Overflow::exact;
  atp::Scaling scaling = atp::Scaling::fixed;
};

// One lane of the parameter server.
[[nodiscard]] atp::ServerJobConfig server_job(const StartJob& start, std::size_t lane, const AtpSettings& settings,
                                              const SwitchEndpoint& endpoint);

// Whom a lane of the parameter server has keys with: its ranks, which may bypass their switches, and the switches next to
// it.
[[nodiscard]] std::vector<seal::Neighbour> server_neighbours(const StartJob& start, std::size_t lane,
                                                             const SwitchEndpoint& endpoint);
// A lane of a switch.
[[nodiscard]] std::vector<seal::Neighbour> switch_neighbours(const Installation::Lane& lane);
// A lane of a rank.
[[nodiscard]] atp::LaneKeys lane_keys(const Admission& admission, std::size_t lane, const Endpoint& server,
                                      const Endpoint& first_hop);

// For a switch of the placement; `server`: the parameter server's lanes.
[[nodiscard]] Installation installation_for(const StartJob& start, std::uint32_t a_switch, const AtpSettings& settings,
                                            const SwitchEndpoint& endpoint, std::span<const Endpoint> server,
                                            bool again = false);
// At that switch, beside its pool.
[[nodiscard]] std::uint64_t memory_bytes(const Installation& installation);
// One lane of that switch; `installation` has passed check().
[[nodiscard]] atp::SwitchJobConfig switch_job(const Installation& installation, std::size_t lane);

// One lane of a rank, except `lane`, `lanes`, and the rank's own choices.
[[nodiscard]] atp::WorkerConfig worker_config(const Admission& admission, std::uint32_t rank, const AtpSettings& settings,
                                              const Endpoint& server, const Endpoint& first_hop);

}  // namespace netsum::session
