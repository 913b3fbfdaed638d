// SwitchML's jobs: the rules of their admission, and the configuration of their switches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bitmap.h"
#include "jobs/tree.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"
#include "session/protocol_rules.h"

namespace netsum::jobs {

[[nodiscard]] session::ProtocolRules switchml_rules();

// Lanes count their packets by themselves, so each has keys of its own. `lane`: of the aggregator.
[[nodiscard]] seal::PacketKey of_lane(const seal::PacketKey& key, std::size_t lane);
[[nodiscard]] switchml::HopKeys of_lane(const session::RankKeys& keys, std::size_t lane);
// The keys of a rank's end of the lane.
void take_keys(const session::Admission& admission, std::size_t lane, switchml::WorkerConfig& config);

// What sends to a switch of the placement, or to the root (at_server): its ranks and child switches, in the order of their
// lowest ranks.
struct TreeMember {
  std::uint32_t switch_id = session::Placement::at_server;  // at_server: a rank
  RankSet ranks;                                            // that rank, or all below the switch
};
[[nodiscard]] std::vector<TreeMember> members_at(const session::Placement& placement, std::uint32_t switch_id);
// The rank's number among the members where it sends.
[[nodiscard]] std::uint32_t member_of(const session::Placement& placement, std::uint32_t rank);

// One lane of the only switch of a job, without a multicast group.
[[nodiscard]] switchml::SwitchJobConfig switchml_job(const session::StartJob& start, std::size_t lane);
// One lane of the aggregator where the ranks join: of the only switch, or of the root of the job's tree.
// `endpoint`: where the switches below receive; not called for a job without a tree.
[[nodiscard]] switchml::SwitchJobConfig switchml_job(const session::StartJob& start, std::size_t lane,
                                                     const session::SwitchEndpoint& endpoint);
// A switch below. Throws Error: refused.
[[nodiscard]] TreeInstallation read_switchml(const session::SwitchMessage& message, const session::ProtocolRules& rules);
// The endpoints to which a lane of the switch sends.
[[nodiscard]] std::vector<Endpoint> receivers(const TreeInstallation& installation, std::size_t lane);
// One of its lanes.
[[nodiscard]] switchml::SwitchJobConfig switchml_job(const TreeInstallation& installation, std::size_t lane);
// For all of its lanes.
[[nodiscard]] std::uint64_t switchml_memory_bytes(const TreeInstallation& installation);

}  // namespace netsum::jobs
