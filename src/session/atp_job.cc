#include "session/atp_job.h"

#include <utility>

#include "wire/atp.h"
#include "wire/epochs.h"
#include "wire/switchml.h"

namespace netsum::session {
namespace {

atp::TopologyConfig config_of(const Placement& placement) {
  return {placement.parent_of_switch, placement.switch_of_rank};
}

// A rank shares one pair of keys with its server, and another with its switch, which does not learn the first. Each lane has
// its own.
HopKeys with_server(const HopKeys& of_rank, std::size_t lane) {
  if (!of_rank.up) return {};
  return {of_rank.up.derived("netsum atp server", lane), of_rank.down.derived("netsum atp server", lane)};
}
HopKeys with_switch(const HopKeys& of_rank, std::size_t lane) {
  if (!of_rank.up) return {};
  return {of_rank.up.derived("netsum atp switch", lane), of_rank.down.derived("netsum atp switch", lane)};
}
HopKeys of_switch(const StartJob& start, std::uint32_t a_switch, std::size_t lane) {
  if (start.switch_keys.empty()) return {};
  const HopKeys& keys = start.switch_keys[a_switch];
  return {keys.up.derived("netsum atp", lane), keys.down.derived("netsum atp", lane)};
}

seal::Neighbour above(const Endpoint& endpoint, const HopKeys& keys) {
  return {endpoint, keys.up, keys.down};
}
seal::Neighbour below(const Endpoint& endpoint, const HopKeys& keys) {
  return {endpoint, keys.down, keys.up};
}

std::uint64_t cookie_of(const StartJob& start, std::size_t rank, std::size_t lane) {
  const bool known = rank < start.switch_cookies.size() && lane < start.switch_cookies[rank].size();
  return known ? start.switch_cookies[rank][lane] : 0;
}

}  // namespace

ProtocolRules atp_rules() {
  ProtocolRules rules;
  rules.name = "atp";
  rules.version = wire::atp::version;
  rules.max_world_size = wire::atp::max_workers;
  rules.switches = true;
  rules.sealed = true;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (elements > 0 && elements <= wire::atp::max_packet_elements) return "";
    return "packets of " + std::to_string(elements) + " elements are not possible: 1 to " +
           std::to_string(wire::atp::max_packet_elements);
  };
  rules.check_placement = [](const Placement& placement) { return atp::check(config_of(placement)); };
  rules.check_request = check_no_ring;
  rules.units = units_of_packet;
  rules.memory_bytes = [](const JoinRequest& request, const Placement&) -> std::uint64_t {
    return atp::Server::total_bytes(request.packet_elements, request.slots_fixed, request.world_size);
  };
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

std::vector<seal::Neighbour> server_neighbours(const StartJob& start, std::size_t lane, const SwitchEndpoint& endpoint) {
  std::vector<seal::Neighbour> neighbours;
  if (start.keys.empty()) return neighbours;
  for (std::size_t rank = 0; rank < start.endpoints.size(); ++rank) {
    neighbours.push_back(below(start.endpoints[rank][lane], with_server(start.keys[rank], lane)));
  }
  const std::vector<std::uint32_t>& parents = start.admission.placement.parent_of_switch;
  for (std::uint32_t i = 0; i < parents.size(); ++i) {
    if (parents[i] == Placement::at_server) neighbours.push_back(below(endpoint(i, lane), of_switch(start, i, lane)));
  }
  return neighbours;
}

std::vector<seal::Neighbour> switch_neighbours(const Installation::Lane& lane) {
  std::vector<seal::Neighbour> neighbours{above(lane.parent, lane.keys)};
  for (const Installation::Child& child : lane.children) neighbours.push_back(below(child.endpoint, child.keys));
  return neighbours;
}

atp::LaneKeys lane_keys(const Admission& admission, std::size_t lane, const Endpoint& server, const Endpoint& first_hop) {
  atp::LaneKeys keys{admission.security, {above(server, with_server(admission.keys, lane))}};
  if (first_hop != server) keys.neighbours.push_back(above(first_hop, with_switch(admission.keys, lane)));
  return keys;
}

Installation installation_for(const StartJob& start, std::uint32_t a_switch, const AtpSettings& settings,
                              const SwitchEndpoint& endpoint, std::span<const Endpoint> server, bool again) {
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
  installation.part = part_of(admission.placement);
  installation.saturating = settings.overflow == atp::Overflow::saturating;
  installation.security = admission.security;
  installation.again = again;
  for (std::size_t lane = 0; lane < server.size(); ++lane) {
    Installation::Lane& to = installation.lanes.emplace_back();
    to.parent = parent == atp::at_server ? server[lane] : endpoint(parent, lane);
    to.keys = of_switch(start, a_switch, lane);
    to.own = endpoint(a_switch, lane);
    for (const auto& child : topology.children(a_switch)) {
      Installation::Child& c = to.children.emplace_back();
      c.is_switch = child.is_switch;
      c.endpoint = child.is_switch ? endpoint(child.index, lane) : start.endpoints[child.index][lane];
      if (child.is_switch) c.keys = of_switch(start, child.index, lane);
      if (!child.is_switch) {
        if (!start.keys.empty()) c.keys = with_switch(start.keys[child.index], lane);
        c.rank_epoch = admission.rank_epochs[child.index];
        c.cookie = cookie_of(start, child.index, lane);
      }
      topology.below(child).for_each([&](std::uint32_t rank) { c.ranks.push_back(rank); });
    }
  }
  return installation;
}

std::uint64_t memory_bytes(const Installation& installation) {
  const std::size_t children = installation.lanes.front().children.size();
  return installation.lanes.size() *
         (atp::Switch::job_bytes(children, installation.window) + (children + 1) * seal::link_bytes(installation.security));
}

atp::SwitchJobConfig switch_job(const Installation& installation, std::size_t lane) {
  atp::SwitchJobConfig config;
  config.epoch = installation.job_epoch;
  config.folded_epochs = installation.folded_epochs;
  config.packet_elements = installation.packet_elements;
  config.window = installation.window;
  config.level = static_cast<std::uint8_t>(installation.level);
  config.next_level = static_cast<std::uint8_t>(installation.next_level);
  config.overflow = installation.saturating ? atp::Overflow::saturating : atp::Overflow::exact;
  const Installation::Lane& from = installation.lanes[lane];
  config.parent = from.parent;
  for (const auto& child : from.children) {
    atp::SwitchChild& c = config.children.emplace_back();
    c.endpoint = child.endpoint;
    c.is_switch = child.is_switch;
    c.rank_epoch = child.rank_epoch;
    for (const std::uint32_t rank : child.ranks) c.ranks.insert(rank);
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
    config.partition_count = part_of(placement).count;
    config.partition_first = part_of(placement).first;
  }
  return config;
}

}  // namespace netsum::session
