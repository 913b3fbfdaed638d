#include "session/atp_job.h"

#include <utility>

#include "netsum/error.h"
#include "wire/atp.h"
#include "wire/switchml.h"

namespace netsum::session {
namespace {

atp::TopologyConfig config_of(const Placement& placement) {
  return {placement.parent_of_switch, placement.switch_of_rank};
}

}  // namespace

ProtocolRules atp_rules() {
  ProtocolRules rules;
  rules.name = "atp";
  rules.version = wire::atp::version;
  rules.max_world_size = wire::atp::max_workers;
  rules.switches = true;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (elements > 0 && elements <= wire::atp::max_packet_elements) return "";
    return "packets of " + std::to_string(elements) + " elements are not possible: 1 to " +
           std::to_string(wire::atp::max_packet_elements);
  };
  rules.check_placement = [](const Placement& placement) { return atp::check(config_of(placement)); };
  rules.check_request = check_no_ring;
  rules.units = units_of_packet;
  return rules;
}

atp::Topology topology_of(const Placement& placement) {
  return atp::Topology(config_of(placement));
}

atp::ServerJobConfig server_job(const StartJob& start, std::size_t lane, const AtpSettings& settings,
                                const SwitchEndpoint& endpoint) {
  const Admission& admission = start.admission;
  atp::ServerJobConfig config;
  config.epoch = admission.job_epoch;
  config.folded_epochs = wire::fold_epochs(admission.rank_epochs);
  config.packet_elements = admission.packet_elements;
  config.window = admission.slots;
  config.switch_slots = std::max(1U, admission.placement.pool_slots);
  config.indexing = admission.placement.parts != 0 ? atp::Indexing::partition : settings.indexing;
  config.overflow = settings.overflow;
  config.topology = topology_of(admission.placement);
  for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
    config.members.push_back({admission.rank_epochs[rank], start.endpoints[rank][lane]});
  }
  for (const auto& child : config.topology.server_children()) {
    config.roots.push_back(child.is_switch ? endpoint(child.index, lane) : config.members[child.index].endpoint);
  }
  return config;
}

Installation installation_for(const StartJob& start, std::uint32_t a_switch, const AtpSettings& settings,
                              const SwitchEndpoint& endpoint, std::span<const Endpoint> server) {
  const Admission& admission = start.admission;
  const atp::Topology topology = topology_of(admission.placement);
  const std::uint32_t parent = topology.parent(a_switch);
  Installation installation;
  installation.job = start.job;
  installation.job_epoch = admission.job_epoch;
  installation.folded_epochs = wire::fold_epochs(admission.rank_epochs);
  installation.packet_elements = admission.packet_elements;
  installation.window = admission.slots;
  installation.level = topology.level(a_switch);
  installation.next_level = parent == atp::at_server ? topology.server_level() : topology.level(parent);
  installation.saturating = settings.overflow == atp::Overflow::saturating;
  for (std::size_t lane = 0; lane < server.size(); ++lane) {
    Installation::Lane& to = installation.lanes.emplace_back();
    to.parent = parent == atp::at_server ? server[lane] : endpoint(parent, lane);
    for (const auto& child : topology.children(a_switch)) {
      Installation::Child& c = to.children.emplace_back();
      c.is_switch = child.is_switch;
      c.endpoint = child.is_switch ? endpoint(child.index, lane) : start.endpoints[child.index][lane];
      if (!child.is_switch) c.rank_epoch = admission.rank_epochs[child.index];
      topology.below(child).for_each([&](std::uint32_t rank) { c.ranks.push_back(rank); });
    }
  }
  return installation;
}

atp::SwitchJobConfig switch_job(const Installation& installation, std::size_t lane) {
  const auto refuse = [](const std::string& what) { return Error(ErrorCode::refused, "an installation with " + what); };
  if (installation.level >= wire::atp::max_levels || installation.next_level >= wire::atp::max_levels ||
      installation.level >= installation.next_level) {
    throw refuse("levels that make no sense");
  }
  if (installation.packet_elements == 0 || installation.packet_elements > wire::atp::max_packet_elements) {
    throw refuse("packets of " + std::to_string(installation.packet_elements) + " elements");
  }
  if (installation.window == 0) throw refuse("no window");
  atp::SwitchJobConfig config;
  config.epoch = installation.job_epoch;
  config.folded_epochs = installation.folded_epochs;
  config.packet_elements = installation.packet_elements;
  config.window = installation.window;
  config.level = static_cast<std::uint8_t>(installation.level);
  config.next_level = static_cast<std::uint8_t>(installation.next_level);
  config.overflow = installation.saturating ? atp::Overflow::saturating : atp::Overflow::exact;
  const Installation::Lane& from = installation.lanes.at(lane);
  config.parent = from.parent;
  if (from.children.empty() || from.children.size() > wire::atp::max_fan_in) throw refuse("no children, or too many");
  for (const auto& child : from.children) {
    atp::SwitchChild c;
    c.endpoint = child.endpoint;
    c.is_switch = child.is_switch;
    c.rank_epoch = child.rank_epoch;
    for (const std::uint32_t rank : child.ranks) {
      if (rank >= wire::atp::max_workers) throw refuse("rank " + std::to_string(rank));
      c.ranks.insert(rank);
    }
    config.children.push_back(c);
  }
  return config;
}

atp::WorkerConfig worker_config(const Admission& admission, std::uint32_t rank, const AtpSettings& settings,
                                const Endpoint& server, const Endpoint& first_hop) {
  atp::WorkerConfig config;
  config.job_epoch = admission.job_epoch;
  config.rank = rank;
  config.world_size = static_cast<std::uint32_t>(admission.rank_epochs.size());
  config.rank_epoch = admission.rank_epoch;
  config.folded_epochs = wire::fold_epochs(admission.rank_epochs);
  config.packet_elements = admission.packet_elements;
  config.window = admission.slots;
  config.server = server;
  config.first_hop = first_hop;
  config.path = topology_of(admission.placement).path(rank);
  config.indexing = settings.indexing;
  config.scaling = settings.scaling;
  config.switch_slots = std::max(1U, admission.placement.pool_slots);
  if (const Placement& placement = admission.placement; placement.parts != 0) {
    config.indexing = atp::Indexing::partition;
    config.partition_count = std::max(1U, placement.pool_slots / placement.parts);
    config.partition_first = placement.part * config.partition_count;
  }
  return config;
}

}  // namespace netsum::session
