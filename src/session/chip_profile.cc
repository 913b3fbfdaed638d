#include "session/chip_profile.h"

#include <algorithm>

#include "protocol/switchml/chip_switch.h"
#include "session/netreduce_job.h"
#include "session/registry.h"

namespace netsum::session {
namespace {

bool takes(const ChipProfile& profile, std::uint32_t packet_elements) {
  return std::count(profile.packet_elements.begin(), profile.packet_elements.end(), packet_elements) != 0;
}

std::string lengths_of(const ChipProfile& profile) {
  std::string text;
  for (const std::uint32_t length : profile.packet_elements) {
    text += (text.empty() ? "" : " or ") + std::to_string(length);
  }
  return text;
}

// Empty, or which switch of the tree has too many members, and what to do.
std::string check_members(const ChipProfile& profile, const Placement& placement) {
  const std::size_t root = placement.switches.size();
  std::vector<std::uint32_t> members(root + 1);
  std::vector<bool> counted(root);
  for (std::uint32_t at : placement.switch_of_rank) {
    for (; at != Placement::at_server && !counted[at]; at = placement.parent_of_switch[at]) {
      ++members[at];
      counted[at] = true;
    }
    ++members[at == Placement::at_server ? root : at];
  }
  const auto most = std::max_element(members.begin(), members.end());
  if (*most <= profile.max_members) return "";
  const auto a_switch = static_cast<std::size_t>(most - members.begin());
  return std::to_string(*most) + " ranks and switches are next to " +
         (a_switch == root ? "the aggregator" : "switch " + placement.switches[a_switch]) +
         ", a chip with a bit for each of " + std::to_string(profile.max_members) +
         ": put each rack's ranks at a chip of its own below it (bench --spine, NETSUM_SPINE; docs/operations.md)";
}

}  // namespace

std::string check(const ChipProfile& profile) {
  if (profile.max_members == 0 || profile.max_members > wire::chip::max_members)
    return "a chip for no such number of members";
  if (profile.packet_elements.empty() || profile.packet_elements.size() > 2 ||
      !std::all_of(profile.packet_elements.begin(), profile.packet_elements.end(), wire::chip::possible_packet)) {
    return "a chip for packets of no such length";
  }
  return "";
}

ProtocolRules switchml_chip_rules(const ChipProfile& profile) {
  ProtocolRules rules;
  rules.name = "switchml-chip";
  rules.version = wire::chip::format;
  rules.max_world_size = wire::switchml::max_workers;
  rules.watched = true;
  rules.check_packet = [profile](std::uint32_t elements) -> std::string {
    if (takes(profile, elements)) return "";
    return "packets of " + std::to_string(elements) + " elements are not possible at a chip: " + lengths_of(profile);
  };
  rules.switches = true;
  rules.switches_needed = true;
  rules.check_placement = [profile](const Placement& placement) {
    std::string error = netreduce::check(tree_of(placement, placement.switch_of_rank.size()));
    return error.empty() ? check_members(profile, placement) : error;
  };
  rules.check_request = check_no_ring;
  rules.units = units_of_packet;
  rules.memory_bytes = [](const JoinRequest& request, const Placement&) -> std::uint64_t {
    return switchml::ChipSwitch::total_bytes(request.packet_elements, request.slots_fixed);
  };
  return rules;
}

std::string why_not_at_chip(const ChipProfile& profile, std::uint32_t packet_elements, WireFormat wire) {
  if (packet_elements != 0 && !takes(profile, packet_elements)) {
    return "takes packets of " + lengths_of(profile) + " elements, not of " + std::to_string(packet_elements);
  }
  if (wire == WireFormat::float16 || wire == WireFormat::bfloat16) {
    return std::string("adds integers, so floats travel as block fixed point and not as ") + to_string(wire);
  }
  return "";
}

}  // namespace netsum::session
