#include "jobs/switchml_job.h"

#include <algorithm>
#include <map>
#include <utility>

#include "jobs/chip_profile.h"
#include "jobs/switchml_terms.h"
#include "netsum/error.h"
#include "protocol/switchml/chip_switch.h"
#include "seal/sealer.h"
#include "wire/switchml.h"

namespace netsum::jobs {

using session::Admission;
using session::Placement;
using session::RankKeys;
using session::StartJob;
using session::SwitchEndpoint;

namespace {

switchml::HopKeys keys_of(const std::vector<RankKeys>& keys, std::size_t number, std::size_t lane) {
  return number < keys.size() ? of_lane(keys[number], lane) : switchml::HopKeys();
}

// Without members.
switchml::SwitchJobConfig lane_of(const Admission& admission, std::size_t lane) {
  switchml::SwitchJobConfig config;
  config.epoch = admission.job_epoch;
  config.packet_elements = admission.packet_elements;
  config.slots = admission.slots;
  config.security = admission.security;
  config.results = of_lane(admission.results, lane);
  return config;
}

// At one switch of the tree, or the root.
switchml::SwitchJobConfig tree_job(const StartJob& start, std::size_t lane, std::uint32_t switch_id,
                                   const SwitchEndpoint& endpoint) {
  const Placement& placement = start.admission.placement;
  switchml::SwitchJobConfig config = lane_of(start.admission, lane);
  switchml::TreePlace& tree = config.tree.emplace();
  tree.rank_epochs = start.admission.rank_epochs;
  if (switch_id != Placement::at_server) {
    const std::uint32_t parent = placement.parent_of_switch[switch_id];
    tree.parent = endpoint(parent, lane);
    tree.parent_keys = keys_of(start.switch_keys, switch_id, lane);
    const std::vector<TreeMember> siblings = members_at(placement, parent);
    tree.number = static_cast<std::size_t>(
        std::find_if(siblings.begin(), siblings.end(), [&](const TreeMember& each) { return each.switch_id == switch_id; }) -
        siblings.begin());
  }
  for (TreeMember& member : members_at(placement, switch_id)) {
    const bool is_switch = member.switch_id != Placement::at_server;
    if (is_switch) {
      config.members.push_back(
          {0, endpoint(member.switch_id, lane), false, keys_of(start.switch_keys, member.switch_id, lane)});
    } else {
      const std::uint32_t rank = member.ranks.front();
      config.members.push_back(
          {start.admission.rank_epochs[rank], start.endpoints[rank][lane], false, keys_of(start.keys, rank, lane)});
    }
    tree.is_switch.push_back(is_switch);
    tree.below.push_back(member.ranks);
  }
  return config;
}

}  // namespace

session::ProtocolRules switchml_rules() {
  session::ProtocolRules rules;
  rules.name = "switchml";
  rules.version = wire::switchml::version;
  rules.max_world_size = wire::switchml::max_workers;
  rules.sealed = true;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (wire::switchml::possible_packet(elements)) return "";
    return "packets of " + std::to_string(elements) + " elements are not possible: use a multiple of " +
           std::to_string(wire::switchml::packet_step) + " up to " + std::to_string(wire::switchml::most_sharing_blocks) +
           ", or of " + std::to_string(wire::switchml::block_elements) + " up to " +
           std::to_string(wire::switchml::max_packet_elements);
  };
  rules.switches = true;
  rules.switches_needed = true;
  rules.check_placement = check_tree;
  rules.cost = [](const session::Terms& terms) -> session::Cost {
    const bool alone = terms.placement.switches.empty();
    const std::size_t members = alone ? terms.world_size : session::neighbours_of(terms.placement, Placement::at_server);
    return {session::units_of_packet(terms.packet_elements),
            switchml::Switch::total_bytes(terms.packet_elements, terms.slots, terms.world_size, members,
                                          alone ? switchml::Switch::Role::alone : switchml::Switch::Role::root)};
  };
  rules.own = switchml_terms();
  return rules;
}

std::vector<TreeMember> members_at(const Placement& placement, std::uint32_t switch_id) {
  std::vector<TreeMember> members;
  std::map<std::uint32_t, std::size_t> number_of_switch;
  for (std::uint32_t rank = 0; rank < placement.switch_of_rank.size(); ++rank) {
    std::uint32_t child = Placement::at_server, at = placement.switch_of_rank[rank];
    while (at != switch_id && at != Placement::at_server) {
      child = at;
      at = placement.parent_of_switch[at];
    }
    if (at != switch_id) continue;
    if (child != Placement::at_server) {
      const auto [known, added] = number_of_switch.emplace(child, members.size());
      if (!added) {
        members[known->second].ranks.insert(rank);
        continue;
      }
    }
    members.push_back({child, {}});
    members.back().ranks.insert(rank);
  }
  return members;
}

std::uint32_t member_of(const Placement& placement, std::uint32_t rank) {
  const std::vector<TreeMember> members = members_at(placement, placement.switch_of_rank[rank]);
  return static_cast<std::uint32_t>(std::find_if(members.begin(), members.end(),
                                                 [&](const TreeMember& each) {
                                                   return each.switch_id == Placement::at_server &&
                                                          each.ranks.contains(rank);
                                                 }) -
                                    members.begin());
}

seal::PacketKey of_lane(const seal::PacketKey& key, std::size_t lane) {
  return key ? key.derived("netsum lane", lane) : key;
}
switchml::HopKeys of_lane(const RankKeys& keys, std::size_t lane) {
  return {of_lane(keys.up, lane), of_lane(keys.down, lane)};
}

void take_keys(const Admission& admission, std::size_t lane, switchml::WorkerConfig& config) {
  config.security = admission.security;
  config.results = of_lane(admission.results, lane);
  config.keys = of_lane(admission.keys, lane);
}

switchml::SwitchJobConfig switchml_job(const StartJob& start, std::size_t lane, const SwitchEndpoint& endpoint) {
  if (start.admission.placement.switches.empty()) return switchml_job(start, lane);
  return tree_job(start, lane, Placement::at_server, endpoint);
}

switchml::SwitchJobConfig switchml_job(const StartJob& start, std::size_t lane) {
  switchml::SwitchJobConfig config = lane_of(start.admission, lane);
  for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
    config.members.push_back({start.admission.rank_epochs[rank], start.endpoints[rank][lane], start.listens[rank],
                              keys_of(start.keys, rank, lane)});
  }
  return config;
}

TreeInstallation read_switchml(const session::SwitchMessage& message, const session::ProtocolRules& rules) {
  TreeInstallation installation = read_tree(message, rules);
  if (switchml_job(installation, 0).members.empty())
    throw Error(ErrorCode::refused, "invalid installation of job '" + message.job + "': no rank is below this switch");
  return installation;
}

std::vector<Endpoint> receivers(const TreeInstallation& installation, std::size_t lane) {
  std::vector<Endpoint> all;
  const switchml::SwitchJobConfig config = switchml_job(installation, lane);
  for (const switchml::Member& member : config.members) all.push_back(member.endpoint);
  all.push_back(*config.tree->parent);
  return all;
}

switchml::SwitchJobConfig switchml_job(const TreeInstallation& installation, std::size_t lane) {
  return tree_job(installation.start, lane, installation.switch_id, endpoints_of(installation));
}

std::uint64_t switchml_memory_bytes(const TreeInstallation& installation) {
  const Admission& admission = installation.start.admission;
  const std::uint64_t lanes = installation.root.size();
  if (installation.start.protocol == switchml_chip_rules().name) {
    return lanes * switchml::ChipSwitch::total_bytes(admission.packet_elements, admission.slots);
  }
  const std::size_t members = session::neighbours_of(admission.placement, installation.switch_id);
  return lanes * (switchml::Switch::total_bytes(admission.packet_elements, admission.slots, admission.rank_epochs.size(),
                                                members, switchml::Switch::Role::below) +
                  (members + 1) * seal::link_bytes(admission.security));
}

}  // namespace netsum::jobs
