#include "jobs/switchml_rdma.h"

#include <string>

#include "jobs/switchml_terms.h"
#include "protocol/switchml/rdma_switch.h"
#include "wire/switchml_chip.h"
#include "wire/switchml_rdma.h"

namespace netsum::jobs {

session::ProtocolRules switchml_rdma_rules() {
  session::ProtocolRules rules;
  rules.name = "switchml-rdma";
  rules.version = 1;
  rules.max_world_size = wire::chip::max_members;
  rules.watched = true;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (wire::rdma::possible_message(elements)) return "";
    return "messages of " + std::to_string(elements) +
           " elements are not possible over UC: use 256, 512, 1024, 2048 or 4096";
  };
  rules.check_placement = [](const session::Placement& placement) -> std::string {
    return placement.switches.empty() ? "" : "there are no trees over UC: leave out the switches below the aggregator";
  };
  rules.cost = [](const session::Terms& terms) -> session::Cost {
    return {session::units_of_packet(terms.packet_elements),
            switchml::RdmaSwitch::total_bytes(terms.packet_elements, terms.slots, terms.world_size)};
  };
  rules.own = switchml_terms();
  return rules;
}

}  // namespace netsum::jobs
