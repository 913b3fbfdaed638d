#include "jobs/atp_job.h"

#include <algorithm>
#include <set>
#include <utility>

#include "encoding/codec.h"
#include "jobs/own_layouts.h"
#include "jobs/own_part.h"
#include "netsum/error.h"
#include "session/check.h"
#include "session/fields.h"
#include "wire/atp.h"
#include "wire/epochs.h"

namespace netsum::jobs {

using session::Admission;
using session::HopKeys;
using session::Placement;
using session::ProtocolRules;
using session::StartJob;
using session::SwitchEndpoint;

template <class Archive>
void fields(Archive& a, AtpPool& m) {
  a.number(1, "slots", m.slots);
  a.number(2, "elements", m.elements);
}
template <class Archive>
void fields(Archive& a, AtpAsk& m) {
  a.number(1, "pool_slots", m.pool_slots);
}
template <class Archive>
void fields(Archive& a, AtpGrant& m) {
  a.number(1, "pool_slots", m.pool_slots);
  a.number(2, "part", m.part);
  a.number(3, "parts", m.parts);
  a.choice(4, "indexing", m.indexing, atp::Indexing::linear);
  a.choice(5, "scaling", m.scaling, atp::Scaling::dynamic);
  a.choice(6, "rules", m.rules, atp::Rules::chip);
}
template <class Archive>
void fields(Archive& a, AtpInstallation::Child& m) {
  a.message(1, "endpoint", m.endpoint);
  a.flag(2, "is_switch", m.is_switch);
  a.number(3, "rank_epoch", m.rank_epoch);
  a.list(4, "ranks", m.ranks, max_world_size);
  a.number(5, "cookie", m.cookie);
  a.message(6, "keys", m.keys);
}
template <class Archive>
void fields(Archive& a, AtpInstallation::Lane& m) {
  a.message(1, "parent", m.parent);
  a.list(2, "children", m.children, max_world_size);
  a.message(3, "keys", m.keys);
  a.message(4, "own", m.own);
}
template <class Archive>
void fields(Archive& a, AtpInstallation& m) {
  a.number(1, "folded_epochs", m.folded_epochs);
  a.number(2, "packet_elements", m.packet_elements);
  a.number(3, "level", m.level);
  a.number(4, "next_level", m.next_level);
  a.flag(5, "saturating", m.saturating);
  a.list(6, "lanes", m.lanes, session::most_lanes);
  a.number(7, "window", m.window);
  a.number(8, "first_slot", m.part.first);
  a.number(9, "own_slots", m.part.count);
  a.choice(10, "security", m.security, PacketSecurity::encrypt);
  a.choice(11, "rules", m.rules, atp::Rules::chip);
}

std::string atp_layout() {
  using encoding::Layout;
  return Layout::of<AtpPool>() + Layout::of<AtpAsk>() + Layout::of<AtpGrant>() + Layout::of<AtpInstallation>();
}

namespace {

constexpr const char* atp_name = "atp";

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
HopKeys of_switch(const StartJob& start, std::uint32_t switch_id, std::size_t lane) {
  if (start.switch_keys.empty()) return {};
  const HopKeys& keys = start.switch_keys[switch_id];
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

std::string check_packet(std::uint32_t elements) {
  if (elements > 0 && elements <= wire::atp::max_packet_elements) return "";
  return "packets of " + std::to_string(elements) + " elements are not possible: use 1 to " +
         std::to_string(wire::atp::max_packet_elements);
}

// The first part of the switches' slots that no other job has. An empty text, or why there is none.
std::string choose_part(const session::Gathered& gathered, const AtpParts& parts, AtpGrant& grant) {
  if (parts.count == 0) return "";
  std::set<std::uint32_t> taken;
  for (const session::OwnPart* const other : gathered.others) taken.insert(checked_part<AtpGrant>(*other).part);
  const std::uint32_t own = parts.own != 0 ? parts.own : parts.count - parts.first;
  grant.parts = parts.count;
  grant.part = parts.first;
  while (taken.contains(grant.part)) ++grant.part;
  if (grant.part >= parts.first + own)
    return "all " + std::to_string(own) + " parts of the switches' slots are in use by other jobs";
  if (grant.pool_slots == 0 || grant.pool_slots >= parts.count) return "";
  return std::to_string(grant.pool_slots) + " slots of a switch are too few for " + std::to_string(parts.count) +
         " parts: start it with more --pool-slots, or the server with fewer --parts";
}

// Chips read one form of the header, whose bitmaps have a word.
std::string check_for_chips(const session::Gathered& gathered) {
  for (const session::JoinRequest* const rank : gathered.ranks) {
    if (rank->security == PacketSecurity::none) continue;
    return "rank " + std::to_string(rank->rank) +
           " requires packet keys, and the parameter server has --rules chip, which "
           "has none";
  }
  const atp::Topology topology(config_of(gathered.placement));
  std::size_t most = topology.server_children().size();
  for (std::uint32_t i = 0; i < topology.switches(); ++i) most = std::max(most, topology.children(i).size());
  if (most <= atp_chip_children) return "";
  return "the parameter server has --rules chip, with which at most " + std::to_string(atp_chip_children) +
         " ranks and switches are next to a switch or to the server, and the job has " + std::to_string(most);
}

session::Agreement agree_on_pool(const session::Gathered& gathered, const AtpSettingsOf& settings_of,
                                 const AtpParts& parts) {
  const AtpSettings settings = settings_of ? settings_of(gathered.ranks.front()->job) : AtpSettings();
  AtpGrant grant;
  grant.indexing = settings.indexing;
  grant.scaling = settings.scaling;
  grant.rules = settings.rules;
  const auto with_pool = [&](std::uint32_t slots) {
    if (slots != 0) grant.pool_slots = grant.pool_slots == 0 ? slots : std::min(grant.pool_slots, slots);
  };
  for (const session::JoinRequest* const rank : gathered.ranks) {
    if (!rank->switch_address.empty()) with_pool(checked_part<AtpAsk>(rank->own).pool_slots);
  }
  for (const session::OwnPart* const parent : gathered.parents) {
    if (const auto pool = encoding::parsed<AtpPool>(*parent)) with_pool(pool->slots);
  }
  session::Agreement agreement;
  agreement.slots = gathered.window;
  agreement.reason = choose_part(gathered, parts, grant);
  if (!agreement.reason.empty()) agreement.refusal = session::Refusal::no_slots;
  if (std::string why = grant.rules == atp::Rules::chip ? check_for_chips(gathered) : ""; !why.empty()) {
    agreement.reason = std::move(why);
    agreement.refusal = session::Refusal::bad_parameters;
  }
  agreement.own = written(grant);
  return agreement;
}

std::string check_child(const AtpInstallation::Child& child) {
  if (child.ranks.empty()) return "a child has no ranks";
  RankSet ranks;
  for (const std::uint32_t rank : child.ranks) {
    if (rank >= wire::atp::max_workers) return "rank " + std::to_string(rank) + " is too large";
    if (ranks.contains(rank)) return "a child has rank " + std::to_string(rank) + " twice";
    ranks.insert(rank);
  }
  if (child.is_switch) {
    if (child.rank_epoch != 0) return "a child that is a switch has the epoch of a rank";
    // A switch that could not be reached yet has no address, and sends nothing.
    return child.endpoint == Endpoint{} || session::is_host(child.endpoint)
               ? ""
               : "the address of a switch below is not a unicast address with a port";
  }
  if (child.ranks.size() != 1) return "a child that is a rank has " + std::to_string(child.ranks.size()) + " ranks";
  if (child.rank_epoch == 0) return "rank " + std::to_string(child.ranks.front()) + " has no epoch";
  return session::is_host(child.endpoint)
             ? ""
             : "the address of rank " + std::to_string(child.ranks.front()) + " is not a unicast address with a port";
}

std::string check_lane(const AtpInstallation::Lane& lane) {
  if (!session::is_host(lane.parent)) return "the parent's address is not a unicast address with a port";
  if (lane.children.empty() || lane.children.size() > wire::atp::max_fan_in) {
    return session::between("number of children", lane.children.size(), 1, wire::atp::max_fan_in);
  }
  RankSet below;
  for (const AtpInstallation::Child& child : lane.children) {
    if (std::string error = check_child(child); !error.empty()) return error;
    for (const std::uint32_t rank : child.ranks) {
      if (below.contains(rank)) return "rank " + std::to_string(rank) + " is below two children";
      below.insert(rank);
    }
  }
  return "";
}

bool has_keys(const AtpInstallation::Lane& lane, bool sealed) {
  const auto right = [](const HopKeys& keys, bool some) {
    return static_cast<bool>(keys.up) == some && static_cast<bool>(keys.down) == some;
  };
  return right(lane.keys, sealed) && std::all_of(lane.children.begin(), lane.children.end(), [&](const auto& child) {
           const bool without = !child.is_switch && !child.keys.up;  // a rank on the switch's host
           return right(child.keys, sealed && !without);
         });
}

bool same_children(const AtpInstallation::Lane& a, const AtpInstallation::Lane& b) {
  return std::equal(a.children.begin(), a.children.end(), b.children.begin(), b.children.end(),
                    [](const AtpInstallation::Child& c, const AtpInstallation::Child& d) {
                      return c.is_switch == d.is_switch && c.rank_epoch == d.rank_epoch && c.ranks == d.ranks;
                    });
}

}  // namespace

session::Profile pool_profile(const AtpPool& pool) {
  return {atp_name, written(pool)};
}
std::optional<AtpPool> pool_in(const std::vector<session::Profile>& profiles) {
  const session::OwnPart* const said = session::profile_of(profiles, atp_name);
  if (said == nullptr) return std::nullopt;
  const auto pool = encoding::parsed<AtpPool>(*said);
  return pool && pool->slots != 0 && check_packet(pool->elements).empty() ? std::optional(*pool) : std::nullopt;
}

session::OwnPart own_part(const AtpAsk& ask) {
  return written(ask);
}
session::OwnPart own_part(const AtpGrant& grant) {
  return written(grant);
}
AtpGrant atp_grant(const session::Admission& admission) {
  return checked_part<AtpGrant>(admission.own);
}

SlotPart slot_part_of(const AtpGrant& grant) {
  if (grant.parts == 0) return {};
  const std::uint32_t count = std::max(1U, grant.pool_slots / grant.parts);
  return {grant.part * count, count};
}

ProtocolRules atp_rules(const AtpSettingsOf& settings, const AtpParts& parts) {
  ProtocolRules rules;
  rules.name = atp_name;
  rules.version = wire::atp::version;
  rules.max_world_size = wire::atp::max_workers;
  rules.switches = true;
  rules.sealed = true;
  rules.check_packet = check_packet;
  rules.check_placement = [](const Placement& placement) { return atp::check(config_of(placement)); };
  rules.cost = [](const session::Terms& terms) -> session::Cost {
    return {session::units_of_packet(terms.packet_elements),
            atp::Server::total_bytes(terms.packet_elements, terms.slots, terms.world_size)};
  };
  ProtocolRules::Own& own = rules.own.emplace();
  own.check_request = [](const session::JoinRequest& request) { return encoding::parsed<AtpAsk>(request.own).why(); };
  own.agree = [settings, parts](const session::Gathered& gathered) { return agree_on_pool(gathered, settings, parts); };
  own.check_admission = [](const Admission& admission, const session::JoinRequest&) -> std::string {
    const auto grant = encoding::parsed<AtpGrant>(admission.own);
    if (!grant) return grant.why();
    if (grant->parts == 0 ? grant->part == 0 : grant->part < grant->parts) return "";
    return "the admission has part " + std::to_string(grant->part) + " of the switches' slots, and there are " +
           std::to_string(grant->parts) + " parts";
  };
  return rules;
}

std::string check(const AtpInstallation& installation) {
  if (std::string error = session::first_of(
          {session::between("packet length", installation.packet_elements, 1, wire::atp::max_packet_elements),
           session::between("window", installation.window, 1, session::most_slots),
           session::between("number of lanes", installation.lanes.size(), 1, session::most_lanes)});
      !error.empty()) {
    return error;
  }
  if (installation.next_level >= wire::atp::max_levels || installation.level >= installation.next_level) {
    return "level " + std::to_string(installation.level) + " and the level above it, " +
           std::to_string(installation.next_level) + ", are not in ascending order below " +
           std::to_string(wire::atp::max_levels);
  }
  for (std::size_t lane = 0; lane < installation.lanes.size(); ++lane) {
    if (std::string error = check_lane(installation.lanes[lane]); !error.empty()) {
      return "lane " + std::to_string(lane) + ": " + error;
    }
    const bool sealed = installation.security != PacketSecurity::none;
    if (!has_keys(installation.lanes[lane], sealed))
      return "lane " + std::to_string(lane) + " does not have the keys of the job's packet security";
    if (!same_children(installation.lanes.front(), installation.lanes[lane])) {
      return "lane " + std::to_string(lane) + " has other children than lane 0";
    }
  }
  return "";
}

session::SwitchMessage message_of(const AtpInstallation& installation) {
  return {atp_name, installation.job, installation.job_epoch, installation.again, encoding::encoded(installation)};
}
AtpInstallation read_installation(const session::SwitchMessage& message) {
  auto read = encoding::parsed<AtpInstallation>(encoding::view(message.own), [](AtpInstallation& installation) {
    if (std::string error = check(installation); !error.empty()) throw encoding::Nonsense{std::move(error)};
  });
  if (!read) throw Error(ErrorCode::refused, "invalid installation of job '" + message.job + "': " + read.why());
  AtpInstallation installation = std::move(*read);
  installation.job = message.job;
  installation.job_epoch = message.job_epoch;
  installation.again = message.again;
  return installation;
}

std::vector<session::Destination> destinations(const AtpInstallation& installation) {
  std::vector<session::Destination> all;
  for (const auto& lane : installation.lanes) {
    all.push_back({lane.parent});
    for (const auto& child : lane.children) {
      all.push_back({child.endpoint, child.is_switch ? "" : "rank " + std::to_string(child.ranks.front()), child.cookie});
    }
  }
  return all;
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
  const AtpGrant grant = atp_grant(admission);
  config.switch_slots = std::max(1U, grant.pool_slots);
  config.indexing = grant.parts != 0 ? atp::Indexing::partition : settings.indexing;
  config.overflow = settings.overflow;
  config.rules = settings.rules;
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

std::vector<seal::Neighbour> switch_neighbours(const AtpInstallation::Lane& lane) {
  std::vector<seal::Neighbour> neighbours{above(lane.parent, lane.keys)};
  for (const AtpInstallation::Child& child : lane.children) neighbours.push_back(below(child.endpoint, child.keys));
  return neighbours;
}

atp::LaneKeys lane_keys(const Admission& admission, std::size_t lane, const Endpoint& server, const Endpoint& first_hop) {
  atp::LaneKeys keys{admission.security, {above(server, with_server(admission.keys, lane))}};
  if (first_hop != server) keys.neighbours.push_back(above(first_hop, with_switch(admission.keys, lane)));
  return keys;
}

AtpInstallation installation_for(const StartJob& start, std::uint32_t switch_id, const AtpSettings& settings,
                                 const SwitchEndpoint& endpoint, std::span<const Endpoint> server, bool again) {
  const Admission& admission = start.admission;
  const atp::Topology topology = topology_of(admission.placement);
  const std::uint32_t parent = topology.parent(switch_id);
  AtpInstallation installation;
  installation.job = start.job;
  installation.job_epoch = admission.job_epoch;
  installation.folded_epochs = wire::fold_epochs(admission.rank_epochs);
  installation.packet_elements = admission.packet_elements;
  installation.window = admission.slots;
  installation.level = topology.level(switch_id);
  installation.next_level = parent == atp::at_server ? topology.server_level() : topology.level(parent);
  installation.part = slot_part_of(atp_grant(admission));
  installation.saturating = settings.overflow == atp::Overflow::saturating;
  installation.rules = settings.rules;
  installation.security = admission.security;
  installation.again = again;
  for (std::size_t lane = 0; lane < server.size(); ++lane) {
    AtpInstallation::Lane& to = installation.lanes.emplace_back();
    to.parent = parent == atp::at_server ? server[lane] : endpoint(parent, lane);
    to.keys = of_switch(start, switch_id, lane);
    to.own = endpoint(switch_id, lane);
    for (const auto& child : topology.children(switch_id)) {
      AtpInstallation::Child& c = to.children.emplace_back();
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

std::uint64_t memory_bytes(const AtpInstallation& installation) {
  const std::size_t children = installation.lanes.front().children.size();
  return installation.lanes.size() *
         (atp::Switch::job_bytes(children, installation.window) + (children + 1) * seal::link_bytes(installation.security));
}

atp::SwitchJobConfig switch_job(const AtpInstallation& installation, std::size_t lane) {
  atp::SwitchJobConfig config;
  config.epoch = installation.job_epoch;
  config.folded_epochs = installation.folded_epochs;
  config.packet_elements = installation.packet_elements;
  config.window = installation.window;
  config.level = static_cast<std::uint8_t>(installation.level);
  config.next_level = static_cast<std::uint8_t>(installation.next_level);
  config.overflow = installation.saturating ? atp::Overflow::saturating : atp::Overflow::exact;
  config.rules = installation.rules;
  const AtpInstallation::Lane& from = installation.lanes[lane];
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

atp::WorkerConfig worker_config(const Admission& admission, std::uint32_t rank, const Endpoint& server,
                                const Endpoint& first_hop) {
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
  const AtpGrant grant = atp_grant(admission);
  config.indexing = grant.indexing;
  config.scaling = grant.scaling;
  config.rules = grant.rules;
  config.switch_slots = std::max(1U, grant.pool_slots);
  if (grant.parts != 0) {
    config.indexing = atp::Indexing::partition;
    config.partition_count = slot_part_of(grant).count;
    config.partition_first = slot_part_of(grant).first;
  }
  return config;
}

}  // namespace netsum::jobs
