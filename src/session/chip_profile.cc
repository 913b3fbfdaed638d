#include "session/chip_profile.h"

#include <algorithm>

#include "protocol/switchml/chip_switch.h"
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

}  // namespace

std::string check(const ChipProfile& profile) {
  if (profile.max_ranks == 0 || profile.max_ranks > wire::chip::max_workers) return "a chip for no such number of ranks";
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
  rules.max_world_size = profile.max_ranks;
  rules.watched = true;
  rules.check_packet = [profile](std::uint32_t elements) -> std::string {
    if (takes(profile, elements)) return "";
    return "packets of " + std::to_string(elements) + " elements are not possible at a chip: " + lengths_of(profile);
  };
  rules.check_placement = [](const Placement&) { return std::string(); };
  rules.check_request = check_no_ring;
  rules.units = units_of_packet;
  rules.memory_bytes = [](const JoinRequest& request, const Placement&) -> std::uint64_t {
    return switchml::ChipSwitch::total_bytes(request.packet_elements, request.slots_fixed);
  };
  return rules;
}

std::string why_not_at_chip(const ChipProfile& profile, std::uint32_t world_size, std::uint32_t packet_elements,
                            WireFormat wire) {
  if (world_size > profile.max_ranks) {
    return "has a bit for each of " + std::to_string(profile.max_ranks) + " ranks at most, not for " +
           std::to_string(world_size);
  }
  if (packet_elements != 0 && !takes(profile, packet_elements)) {
    return "takes packets of " + lengths_of(profile) + " elements, not of " + std::to_string(packet_elements);
  }
  if (wire == WireFormat::float16 || wire == WireFormat::bfloat16) {
    return std::string("adds integers, so floats travel as block fixed point and not as ") + to_string(wire);
  }
  return "";
}

}  // namespace netsum::session
