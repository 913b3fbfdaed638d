#include "jobs/chip_profile.h"

#include <algorithm>

#include "encoding/codec.h"
#include "jobs/own_layouts.h"
#include "jobs/own_part.h"
#include "jobs/switchml_terms.h"
#include "jobs/tree.h"
#include "netsum/error.h"
#include "protocol/switchml/chip_switch.h"

namespace netsum::jobs {

using session::Placement;
using session::ProtocolRules;

template <class Archive>
void fields(Archive& a, ChipProfile& m) {
  a.number(1, "max_members", m.max_members);
  a.list(2, "packet_elements", m.packet_elements, 2);
}

std::string chip_layout() {
  return encoding::Layout::of<ChipProfile>();
}

namespace {

constexpr const char* chip_name = "switchml-chip";

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
  const auto switch_id = static_cast<std::size_t>(most - members.begin());
  return std::to_string(*most) + " ranks and switches are directly below " +
         (switch_id == root ? "the aggregator" : "switch " + placement.switches[switch_id]) + ", a chip for at most " +
         std::to_string(profile.max_members) +
         ": put the ranks of each rack below a chip of their own (bench --spine, NETSUM_SPINE; docs/choosing.md)";
}

}  // namespace

std::string check(const ChipProfile& profile) {
  if (profile.max_members == 0 || profile.max_members > wire::chip::max_members)
    return "the number of members of a chip is 0 or too large";
  if (profile.packet_elements.empty() || profile.packet_elements.size() > 2 ||
      !std::all_of(profile.packet_elements.begin(), profile.packet_elements.end(), wire::chip::possible_packet)) {
    return "the packet lengths of a chip are not possible";
  }
  return "";
}

session::Profile said_profile(const ChipProfile& profile) {
  return {chip_name, written(profile)};
}
std::optional<ChipProfile> chip_in(const std::vector<session::Profile>& profiles) {
  const session::OwnPart* const said = session::profile_of(profiles, chip_name);
  if (said == nullptr) return std::nullopt;
  auto profile = encoding::parsed<ChipProfile>(*said, [](const ChipProfile& read) {
    if (std::string error = check(read); !error.empty()) throw encoding::Nonsense{std::move(error)};
  });
  if (!profile) throw Error(ErrorCode::internal, "its chip profile is invalid: " + profile.why());
  return std::move(*profile);
}

ProtocolRules switchml_chip_rules(const ChipProfile& profile) {
  ProtocolRules rules;
  rules.name = chip_name;
  rules.version = wire::chip::format;
  rules.max_world_size = wire::switchml::max_workers;
  rules.watched = true;
  rules.check_packet = [profile](std::uint32_t elements) -> std::string {
    if (takes(profile, elements)) return "";
    return "packets of " + std::to_string(elements) + " elements are not possible at a chip: use " + lengths_of(profile);
  };
  rules.switches = true;
  rules.switches_needed = true;
  rules.check_placement = [profile](const Placement& placement) {
    std::string error = check_tree(placement);
    return error.empty() ? check_members(profile, placement) : error;
  };
  rules.cost = [](const session::Terms& terms) -> session::Cost {
    return {session::units_of_packet(terms.packet_elements),
            switchml::ChipSwitch::total_bytes(terms.packet_elements, terms.slots)};
  };
  rules.own = switchml_terms();
  return rules;
}

std::string why_not_at_chip(const ChipProfile& profile, std::uint32_t packet_elements, WireFormat wire) {
  if (packet_elements != 0 && !takes(profile, packet_elements)) {
    return "takes packets of " + lengths_of(profile) + " elements, not of " + std::to_string(packet_elements);
  }
  if (wire != WireFormat::native && wire != WireFormat::float32) {
    return std::string("adds integers, so floats travel as block fixed point and not as ") + to_string(wire);
  }
  return "";
}

}  // namespace netsum::jobs
