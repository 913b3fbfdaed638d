#include "session/protocol_rules.h"

#include <algorithm>

#include "protocol/switchml/switch.h"
#include "session/netreduce_job.h"
#include "session/registry.h"
#include "wire/switchml.h"

namespace netsum::session {

std::uint32_t units_of_packet(const JoinRequest& request) {
  return std::max(1U, (request.packet_elements + wire::switchml::block_elements - 1) / wire::switchml::block_elements);
}

std::string check_no_ring(const JoinRequest& request) {
  if (request.members.empty() && request.message_packets == 0) return "";
  return request.protocol + " has no queue pairs and no messages";
}

ProtocolRules switchml_rules() {
  ProtocolRules rules;
  rules.name = "switchml";
  rules.version = wire::switchml::version;
  rules.max_world_size = wire::switchml::max_workers;
  rules.sealed = true;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (wire::switchml::possible_packet(elements)) return "";
    return "packets of " + std::to_string(elements) + " elements are not possible: a multiple of " +
           std::to_string(wire::switchml::packet_step) + " up to " + std::to_string(wire::switchml::most_sharing_blocks) +
           ", or of " + std::to_string(wire::switchml::block_elements) + " up to " +
           std::to_string(wire::switchml::max_packet_elements);
  };
  rules.switches = true;
  rules.switches_needed = true;
  rules.check_placement = [](const Placement& placement) {
    return netreduce::check(tree_of(placement, placement.switch_of_rank.size()));
  };
  rules.check_request = check_no_ring;
  rules.units = units_of_packet;
  rules.memory_bytes = [](const JoinRequest& request, const Placement& placement) -> std::uint64_t {
    const std::size_t members =
        placement.switches.empty() ? request.world_size : neighbours_of(placement, Placement::at_server);
    return switchml::Switch::total_bytes(request.packet_elements, request.slots_fixed, request.world_size, members, true);
  };
  return rules;
}

}  // namespace netsum::session
