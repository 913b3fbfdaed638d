// Trees of switches below the aggregator where a job's ranks join, of SwitchML's and of NetReduce's jobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/netreduce/racks.h"
#include "protocol/netreduce/tunnel.h"
#include "session/membership.h"
#include "session/protocol_rules.h"
#include "session/switch_message.h"

namespace netsum::jobs {

[[nodiscard]] netreduce::Tree tree_of(const session::Placement& placement, std::size_t ranks);
// ProtocolRules::check_placement: every switch has a way up.
[[nodiscard]] std::string check_tree(const session::Placement& placement);

// A job, as a switch in its tree must know it.
struct TreeInstallation {
  session::StartJob start;
  std::uint32_t switch_id = 0;
  bool again = false;                           // as SwitchMessage's
  std::vector<std::vector<Endpoint>> switches;  // [switch][lane]
  std::vector<Endpoint> root;                   // [lane]
};
[[nodiscard]] session::SwitchEndpoint endpoints_of(const TreeInstallation& installation);

// What the switch is told of the job: no keys but those of the results, of the ranks and switches next to it, and its own.
[[nodiscard]] session::StartJob for_switch(const session::StartJob& start, std::uint32_t switch_id);
[[nodiscard]] session::SwitchMessage message_of(const TreeInstallation& installation);
// For a switch of the placement, whose own lanes are known; `root`: the aggregator's lanes.
[[nodiscard]] session::SwitchMessage tree_message(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                  const session::SwitchLanes& switches, std::span<const Endpoint> root);
// At the switch, of a protocol with these rules, all that does not depend on its own part. Throws Error: refused.
[[nodiscard]] TreeInstallation read_tree(const session::SwitchMessage& message, const session::ProtocolRules& rules);
// By a switch that does not know the job. Throws Error: refused, if it was told before.
void refuse_again(const TreeInstallation& installation);

// The addresses where this switch is known to its neighbours, by theirs.
[[nodiscard]] std::vector<session::KnownAs> known_as(const TreeInstallation& installation);
// What sends there, with the proof that it receives what is sent there.
[[nodiscard]] session::Destination destination(const TreeInstallation& installation, std::size_t lane, const Endpoint& to);

}  // namespace netsum::jobs
