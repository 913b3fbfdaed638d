#include "jobs/tree.h"

#include <algorithm>
#include <utility>

#include "encoding/codec.h"
#include "jobs/own_layouts.h"
#include "netsum/error.h"
#include "session/check.h"
#include "session/fields.h"
#include "session/installations.h"

namespace netsum::jobs {
namespace {

using session::Placement;

std::string check(const TreeInstallation& installation, const session::ProtocolRules& rules) {
  const session::StartJob& start = installation.start;
  const session::Admission& admission = start.admission;
  const std::size_t ranks = start.endpoints.size(), lanes = installation.root.size();
  if (std::string error =
          session::first_of({session::between("number of ranks", ranks, 1, rules.max_world_size),
                             session::between("number of lanes", lanes, 1, session::most_lanes),
                             session::between("slots", admission.slots, 1, session::most_slots),
                             rules.check_packet(admission.packet_elements), session::check(admission.placement, ranks)});
      !error.empty()) {
    return error;
  }
  if (admission.rank_epochs.size() != ranks)
    return "there are " + std::to_string(admission.rank_epochs.size()) + " rank epochs for " + std::to_string(ranks) +
           " ranks";
  const std::size_t switches = admission.placement.switches.size();
  if (installation.switch_id >= switches || installation.switches.size() != switches) {
    return "switch " + std::to_string(installation.switch_id) + " of " + std::to_string(switches) +
           " does not exist, or the addresses of " + std::to_string(installation.switches.size()) + " switches are given";
  }
  const auto all_hosts = [](const std::vector<Endpoint>& of) { return std::all_of(of.begin(), of.end(), session::is_host); };
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (start.endpoints[rank].size() != lanes || !all_hosts(start.endpoints[rank])) {
      return "rank " + std::to_string(rank) + " does not have an address for each of " + std::to_string(lanes) + " lanes";
    }
  }
  for (const std::vector<Endpoint>& of_switch : installation.switches) {
    // A switch that could not be reached yet has no addresses, and sends nothing. It may have unused threads.
    const auto known = [](const Endpoint& endpoint) { return endpoint == Endpoint{} || session::is_host(endpoint); };
    if (of_switch.size() < lanes || of_switch.size() > session::most_lanes ||
        !std::all_of(of_switch.begin(), of_switch.end(), known)) {
      return "a switch does not have an address for each of " + std::to_string(lanes) + " lanes";
    }
  }
  if (!all_hosts(installation.root)) return "an aggregator's address is not a unicast address with a port";
  if (std::string error = rules.check_placement(admission.placement); !error.empty()) return error;
  const bool sealed = admission.security != PacketSecurity::none;
  if (start.keys.size() != (sealed ? ranks : 0) || start.switch_keys.size() != (sealed ? switches : 0) ||
      static_cast<bool>(admission.results) != sealed) {
    return "the keys do not match the packet security of the job";
  }
  return "";
}

}  // namespace

template <class Archive>
void fields(Archive& a, TreeInstallation& m) {
  session::StartJob& s = m.start;
  session::Admission& d = s.admission;
  a.number(1, "packet_elements", d.packet_elements);
  a.number(2, "slots", d.slots);
  a.lists(3, "endpoints", s.endpoints, max_world_size, session::most_lanes);
  a.message(4, "placement", d.placement);
  a.lists(5, "switches", m.switches, session::most_switches, session::most_lanes);
  a.list(6, "root", m.root, session::most_lanes);
  a.number(7, "switch_id", m.switch_id);
  a.lists(8, "cookies", s.switch_cookies, max_world_size, session::most_lanes);  // for the switch that a rank is at
  a.list(9, "rank_epochs", d.rank_epochs, max_world_size);
  a.choice(10, "security", d.security, PacketSecurity::encrypt);
  a.key(11, "results", d.results);
  a.list(12, "rank_keys", s.keys, max_world_size);
  a.list(13, "switch_keys", s.switch_keys, session::most_switches);
  a.text(14, "own", d.own, session::longest_own_grant);
}

std::string tree_layout() {
  return encoding::Layout::of<TreeInstallation>();
}

netreduce::Tree tree_of(const Placement& placement, std::size_t ranks) {
  static_assert(netreduce::at_root == Placement::at_server);
  netreduce::Tree tree{placement.parent_of_switch, placement.switch_of_rank};
  tree.switch_of_rank.resize(ranks, netreduce::at_root);
  return tree;
}

std::string check_tree(const Placement& placement) {
  return netreduce::check(tree_of(placement, placement.switch_of_rank.size()));
}

session::SwitchEndpoint endpoints_of(const TreeInstallation& installation) {
  return [&](std::uint32_t switch_id, std::size_t lane) {
    return switch_id == netreduce::at_root ? installation.root[lane] : installation.switches[switch_id][lane];
  };
}

session::StartJob for_switch(const session::StartJob& start, std::uint32_t switch_id) {
  session::StartJob told = start;
  const Placement& placement = start.admission.placement;
  told.admission.keys = {};
  for (std::size_t rank = 0; rank < told.keys.size(); ++rank) {
    if (placement.switch_of_rank[rank] != switch_id) told.keys[rank] = {};
  }
  for (std::size_t other = 0; other < told.switch_keys.size(); ++other) {
    if (other != switch_id && placement.parent_of_switch[other] != switch_id) told.switch_keys[other] = {};
  }
  return told;
}

session::SwitchMessage message_of(const TreeInstallation& installation) {
  const session::StartJob& start = installation.start;
  return {start.protocol, start.job, start.admission.job_epoch, installation.again, encoding::encoded(installation)};
}

session::SwitchMessage tree_message(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                    const session::SwitchLanes& switches, std::span<const Endpoint> root) {
  return message_of({for_switch(start, switch_id), switch_id, again, switches, {root.begin(), root.end()}});
}

TreeInstallation read_tree(const session::SwitchMessage& message, const session::ProtocolRules& rules) {
  auto read = encoding::parsed<TreeInstallation>(encoding::view(message.own), [&](TreeInstallation& installation) {
    if (std::string error = check(installation, rules); !error.empty()) throw encoding::Nonsense{std::move(error)};
  });
  if (!read) throw Error(ErrorCode::refused, "invalid installation of job '" + message.job + "': " + read.why());
  TreeInstallation installation = std::move(*read);
  installation.start.protocol = message.protocol;
  installation.start.job = message.job;
  installation.start.admission.job_epoch = message.job_epoch;
  installation.again = message.again;
  return installation;
}

void refuse_again(const TreeInstallation& installation) {
  if (!installation.again) return;
  throw Error(ErrorCode::refused, "the switch has lost the job's sums, as it was restarted or unreachable");
}

std::vector<session::KnownAs> known_as(const TreeInstallation& installation) {
  std::vector<session::KnownAs> all;
  const std::vector<Endpoint>& own = installation.switches.at(installation.switch_id);
  for (std::size_t lane = 0; lane < std::min(own.size(), installation.root.size()); ++lane) {
    all.push_back({installation.root[lane], own[lane]});
    for (const auto& other : installation.switches) {
      if (lane < other.size()) all.push_back({other[lane], own[lane]});
    }
  }
  return all;
}

session::Destination destination(const TreeInstallation& installation, std::size_t lane, const Endpoint& to) {
  const session::StartJob& start = installation.start;
  const auto is_it = [&](const auto& lanes) { return lanes.at(lane) == to; };
  const bool daemon =
      is_it(installation.root) || std::any_of(installation.switches.begin(), installation.switches.end(), is_it);
  if (daemon) return {to};
  const auto rank = static_cast<std::size_t>(std::find_if(start.endpoints.begin(), start.endpoints.end(), is_it) -
                                             start.endpoints.begin());
  const bool known = rank < start.switch_cookies.size() && lane < start.switch_cookies[rank].size();
  return {to, "rank " + std::to_string(rank), known ? start.switch_cookies[rank][lane] : 0};
}

}  // namespace netsum::jobs
