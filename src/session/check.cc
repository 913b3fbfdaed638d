#include "session/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "session/atp_job.h"
#include "session/chip_profile.h"
#include "session/switchml_job.h"
#include "wire/atp.h"
#include "wire/roce.h"

namespace netsum::session {
namespace {

// IPv4 addresses, as in Endpoint.
bool is_mapped(const std::array<std::uint8_t, 16>& address) {
  constexpr std::uint8_t prefix[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(std::begin(prefix), std::end(prefix), address.begin());
}

std::string between(const std::string& what, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most) return "";
  return what + " " + std::to_string(value) + " is not between " + std::to_string(least) + " and " + std::to_string(most);
}

std::string unprintable(const std::string& what, std::size_t most = longest_name) {
  return what + " is longer than " + std::to_string(most) + " bytes, or not printable";
}

// The first non-empty text.
std::string first_of(std::initializer_list<std::string> errors) {
  for (const std::string& error : errors) {
    if (!error.empty()) return error;
  }
  return "";
}

// Checks for every protocol; the protocols' rules check that each switch has a path up.
std::string check_placement(const Placement& placement, std::size_t ranks) {
  const std::size_t switches = placement.switches.size();
  if (switches > most_switches) return std::to_string(switches) + " switches are too many for a job";
  if (placement.parent_of_switch.size() != switches || placement.switch_of_rank.size() != ranks) {
    return "a placement of " + std::to_string(placement.switch_of_rank.size()) + " ranks at " + std::to_string(switches) +
           " switches, of which " + std::to_string(placement.parent_of_switch.size()) + " have a way up, for " +
           std::to_string(ranks) + " ranks";
  }
  const auto named = [](const std::string& name) { return !name.empty() && is_name(name); };
  if (!std::all_of(placement.switches.begin(), placement.switches.end(), named))
    return "the address of a switch is empty, longer than " + std::to_string(longest_name) + " bytes, or not printable";
  if (placement.indexing > static_cast<std::uint32_t>(atp::Indexing::linear)) return "an unknown way to choose slots";
  if (placement.scaling > static_cast<std::uint32_t>(atp::Scaling::dynamic)) return "an unknown way to scale";
  if (placement.parts == 0 ? placement.part != 0 : placement.part >= placement.parts) {
    return "part " + std::to_string(placement.part) + " of " + std::to_string(placement.parts) + " of the switches' slots";
  }
  return "";
}

bool is_member(const netreduce::Member& member) {
  return member.send_qp <= wire::roce::qp_mask && member.receive_qp <= wire::roce::qp_mask &&
         member.send_psn <= wire::roce::psn_mask;
}

// All ranks have as many queue pairs as lanes, and no two connections of a lane look alike on the wire.
std::string check_members(std::span<const std::vector<netreduce::Member>> members, std::size_t lanes) {
  for (const auto& of_rank : members) {
    if (of_rank.size() != lanes) {
      return std::to_string(of_rank.size()) + " queue pairs of a rank for " + std::to_string(lanes) + " lanes";
    }
    if (!std::all_of(of_rank.begin(), of_rank.end(), is_member)) return "a queue pair whose numbers have more than 24 bits";
  }
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::set<netreduce::Connection> connections;
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      const netreduce::Member &own = members[rank][lane], &next = members[(rank + 1) % members.size()][lane];
      if (!connections.insert(netreduce::data_connection(own, next)).second ||
          !connections.insert(netreduce::answer_connection(own, next)).second) {
        return "a queue pair of rank " + std::to_string(rank) + " on lane " + std::to_string(lane) + " is another's";
      }
    }
  }
  return "";
}

std::string check_child(const Installation::Child& child) {
  if (child.ranks.empty()) return "a child without ranks";
  RankSet ranks;
  for (const std::uint32_t rank : child.ranks) {
    if (rank >= wire::atp::max_workers) return "rank " + std::to_string(rank);
    if (ranks.contains(rank)) return "rank " + std::to_string(rank) + " twice";
    ranks.insert(rank);
  }
  if (child.is_switch) {
    if (child.rank_epoch != 0) return "an epoch of a rank for a switch";
    // A switch that could not be reached yet has no address, and sends nothing.
    return child.endpoint == Endpoint{} || is_host(child.endpoint)
               ? ""
               : "the address of a switch below is not a unicast address with a port";
  }
  if (child.ranks.size() != 1) return std::to_string(child.ranks.size()) + " ranks in place of one";
  if (child.rank_epoch == 0) return "rank " + std::to_string(child.ranks.front()) + " without an epoch";
  return is_host(child.endpoint)
             ? ""
             : "the address of rank " + std::to_string(child.ranks.front()) + " is not a unicast address with a port";
}

std::string check_lane(const Installation::Lane& lane) {
  if (!is_host(lane.parent)) return "the parent's address is not a unicast address with a port";
  if (lane.children.empty() || lane.children.size() > wire::atp::max_fan_in) {
    return between("number of children", lane.children.size(), 1, wire::atp::max_fan_in);
  }
  RankSet below;
  for (const Installation::Child& child : lane.children) {
    if (std::string error = check_child(child); !error.empty()) return error;
    for (const std::uint32_t rank : child.ranks) {
      if (below.contains(rank)) return "rank " + std::to_string(rank) + " below two children";
      below.insert(rank);
    }
  }
  return "";
}

bool has_keys(const Installation::Lane& lane, bool sealed) {
  const auto right = [](const HopKeys& keys, bool some) {
    return static_cast<bool>(keys.up) == some && static_cast<bool>(keys.down) == some;
  };
  return right(lane.keys, sealed) && std::all_of(lane.children.begin(), lane.children.end(), [&](const auto& child) {
           const bool without = !child.is_switch && !child.keys.up;  // a rank on the switch's host
           return right(child.keys, sealed && !without);
         });
}

// How many bytes the first character of a text has. 0: it is not UTF-8, or a control character, or one that ends a line or
// turns the direction of what is behind it.
std::size_t printable_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  char32_t code = first & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<char32_t, 5> least = {0, 0, 0xa0, 0x800, 0x10000};  // what is less is C1, or has a shorter form
  const auto within = [&](char32_t from, char32_t to) { return code >= from && code <= to; };
  const bool surrogate = within(0xd800, 0xdfff), line = within(0x2028, 0x2029),
             turns = code == 0x61c || within(0x200e, 0x200f) || within(0x202a, 0x202e) || within(0x2066, 0x2069);
  return code < least[bytes] || code > 0x10ffff || surrogate || line || turns ? 0 : bytes;
}

bool same_children(const Installation::Lane& a, const Installation::Lane& b) {
  return std::equal(a.children.begin(), a.children.end(), b.children.begin(), b.children.end(),
                    [](const Installation::Child& c, const Installation::Child& d) {
                      return c.is_switch == d.is_switch && c.rank_epoch == d.rank_epoch && c.ranks == d.ranks;
                    });
}

}  // namespace

bool printable(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = printable_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

bool is_name(const std::string& text) {
  return text.size() <= longest_name && printable(text);
}

std::string check_job_name(const std::string& job) {
  if (job.empty()) return "the job has no name";
  if (is_name(job)) return "";
  return "a job's name has at most " + std::to_string(longest_name) +
         " bytes of UTF-8, and no line breaks or other control characters";
}

bool is_address(std::string_view text) {
  const auto all = [](std::string_view part, std::string_view others) {
    return !part.empty() && std::all_of(part.begin(), part.end(), [&](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || others.find(c) != others.npos;
    });
  };
  const std::size_t colon = text.rfind(':');
  if (text.size() > longest_name || colon == text.npos) return false;
  const std::string_view host = text.substr(0, colon);
  if (!parse_number<std::uint16_t>(text.substr(colon + 1), 1)) return false;
  return host.starts_with('[') && host.ends_with(']') ? all(host.substr(1, host.size() - 2), ":.%-_") : all(host, ".-_");
}

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t bytes = printable_bytes(text), taken = std::max<std::size_t>(bytes, 1);
    if (line.size() + taken > longest_text) break;
    line += bytes == 0 ? " " : text.substr(0, bytes);
    text.remove_prefix(taken);
  }
  return line;
}

bool is_anywhere(const Endpoint& endpoint) {
  const auto& a = endpoint.address;
  return endpoint.port != 0 &&
         std::all_of(a.begin() + (is_mapped(a) ? 12 : 0), a.end(), [](auto byte) { return byte == 0; });
}

bool is_group(const Endpoint& endpoint) {
  const auto& a = endpoint.address;
  return endpoint.port != 0 && (is_mapped(a) ? a[12] >= 224 && a[12] < 240 : a[0] == 0xff);
}

bool is_host(const Endpoint& endpoint) {
  const auto& a = endpoint.address;
  const bool all = is_mapped(a) && std::all_of(a.begin() + 12, a.end(), [](auto byte) { return byte == 0xff; });
  return endpoint.port != 0 && !all && !is_anywhere(endpoint) && !is_group(endpoint);
}

std::string check(const JoinRequest& request) {
  if (std::string error =
          first_of({check_job_name(request.job), between("world size", request.world_size, 1, max_world_size)});
      !error.empty()) {
    return error;
  }
  if (request.rank >= request.world_size) {
    return "rank " + std::to_string(request.rank) + " is not below the world size " + std::to_string(request.world_size);
  }
  if (!is_name(request.protocol)) return unprintable("the name of the protocol");
  if (!is_name(request.switch_address)) return unprintable("the address of the rank's switch");
  if (request.aggregators.size() > most_aggregators ||
      !std::all_of(request.aggregators.begin(), request.aggregators.end(), is_name)) {
    return unprintable("the list of aggregators has more than " + std::to_string(most_aggregators) +
                       " entries, or an address in it");
  }
  if (!request.progress.sound()) return "the rank's numbers of finished operations contradict each other";
  if (request.slots_fixed != 0 && (!std::has_single_bit(request.slots_fixed) || request.slots_fixed > most_slots)) {
    return std::to_string(request.slots_fixed) + " slots per lane are not a power of two up to " +
           std::to_string(most_slots);
  }
  if (request.endpoints.size() > most_lanes || request.members.size() > most_lanes) {
    return std::to_string(std::max(request.endpoints.size(), request.members.size())) + " lanes are more than " +
           std::to_string(most_lanes);
  }
  if (!std::all_of(request.endpoints.begin(), request.endpoints.end(), is_host)) {
    return "an address of rank " + std::to_string(request.rank) + " is not a unicast address with a port";
  }
  if (!std::all_of(request.members.begin(), request.members.end(), is_member)) {
    return "a queue pair of rank " + std::to_string(request.rank) + " whose numbers have more than 24 bits";
  }
  if (!is_name(request.process.host)) return unprintable("the host name of the rank");
  if (!is_name(request.why_not_local)) return unprintable("the rank's reason to do without shared memory");
  return "";
}

std::string check(const Admission& admission, const JoinRequest& asked, const ProtocolRules& rules) {
  if (asked.rank >= asked.world_size) return "an admission to what was not asked for";
  if (admission.job_epoch == 0 || admission.rank_epoch == 0) return "an admission without an epoch";
  const std::vector<std::uint32_t>& epochs = admission.rank_epochs;
  if (epochs.size() != asked.world_size) {
    return std::to_string(epochs.size()) + " epochs for " + std::to_string(asked.world_size) + " ranks";
  }
  if (epochs[asked.rank] != admission.rank_epoch) return "two epochs of rank " + std::to_string(asked.rank);
  if (std::set<std::uint32_t> distinct(epochs.begin(), epochs.end());
      distinct.size() != epochs.size() || distinct.contains(0)) {
    return "an epoch that is no rank's, or two ranks'";
  }
  if (admission.packet_elements > asked.packet_elements) {
    return "packets of " + std::to_string(admission.packet_elements) + " elements, longer than the " +
           std::to_string(asked.packet_elements) + " asked for";
  }
  const bool other_slots = asked.slots_fixed != 0 && admission.slots != asked.slots_fixed;
  if (other_slots || admission.slots > most_slots || !std::has_single_bit(admission.slots)) {
    return std::to_string(admission.slots) + " slots per lane";
  }
  if (!asked.packet_elements_measured && admission.packet_elements != asked.packet_elements) {
    return "packets of " + std::to_string(admission.packet_elements) + " elements in place of " +
           std::to_string(asked.packet_elements);
  }
  if (asked.message_packets != 0 && admission.message_packets != asked.message_packets) {
    return "messages of " + std::to_string(admission.message_packets) + " packets in place of " +
           std::to_string(asked.message_packets);
  }
  if (rules.messages && admission.message_packets == 0) return "messages without packets";
  const Placement& placement = admission.placement;
  if (std::string error =
          first_of({rules.check_packet(admission.packet_elements), check_placement(placement, asked.world_size)});
      !error.empty()) {
    return error;
  }
  if (!rules.switches && !placement.switches.empty()) return rules.name + " with switches, which it has none of";
  if (std::string error = rules.check_placement(placement); !error.empty()) return error;
  const std::uint32_t at = placement.switch_of_rank[asked.rank];
  if (asked.switch_address != (at == Placement::at_server ? "" : placement.switches.at(at))) {
    return "rank " + std::to_string(asked.rank) + " placed at a switch that is not its own";
  }
  JoinRequest agreed = asked;
  agreed.slots_fixed = admission.slots;
  agreed.packet_elements = admission.packet_elements;
  agreed.message_packets = admission.message_packets;
  if (std::string error = rules.check_request(agreed); !error.empty()) return error;
  if (admission.members.size() != (asked.members.empty() ? 0 : asked.world_size)) {
    return "queue pairs of " + std::to_string(admission.members.size()) + " ranks";
  }
  if (std::string error = check_members(admission.members, asked.members.size()); !error.empty()) return error;
  if (!asked.members.empty() && admission.members[asked.rank] != asked.members) {
    return "other queue pairs of rank " + std::to_string(asked.rank) + " than its own";
  }
  if (std::string error = stream::check(admission.resumption, asked.progress, asked.world_size); !error.empty())
    return error;
  const bool sealed = admission.security != PacketSecurity::none;
  if (admission.security < asked.security && !admission.local) {
    return std::string("packets protected by ") + to_string(admission.security) + " in place of " +
           to_string(asked.security);
  }
  if (static_cast<bool>(admission.results) != sealed) return sealed ? "no key of the job" : "a key of a job without keys";
  const bool keys = static_cast<bool>(admission.keys.up) && static_cast<bool>(admission.keys.down);
  const bool no_keys = !admission.keys.up && !admission.keys.down;
  if (!(sealed && !asked.near ? keys : no_keys)) return "other keys than a rank has in such a job";
  if (admission.local && asked.local_ticket == 0) return "shared memory, of which this rank has none";
  if (admission.why_not_local.size() > longest_text || !printable(admission.why_not_local)) {
    return "words on shared memory that are none";
  }
  return "";
}

std::string check(const Installation& installation) {
  if (installation.job_epoch == 0) return "a job without an epoch";
  if (std::string error =
          first_of({check_job_name(installation.job),
                    between("packet length", installation.packet_elements, 1, wire::atp::max_packet_elements),
                    between("window", installation.window, 1, most_slots),
                    between("number of lanes", installation.lanes.size(), 1, most_lanes)});
      !error.empty()) {
    return error;
  }
  if (installation.next_level >= wire::atp::max_levels || installation.level >= installation.next_level) {
    return "level " + std::to_string(installation.level) + " with level " + std::to_string(installation.next_level) +
           " above it, of " + std::to_string(wire::atp::max_levels);
  }
  for (std::size_t lane = 0; lane < installation.lanes.size(); ++lane) {
    if (std::string error = check_lane(installation.lanes[lane]); !error.empty()) {
      return "lane " + std::to_string(lane) + ": " + error;
    }
    const bool sealed = installation.security != PacketSecurity::none;
    if (!has_keys(installation.lanes[lane], sealed))
      return "lane " + std::to_string(lane) + " with other keys than such a job has";
    if (!same_children(installation.lanes.front(), installation.lanes[lane])) {
      return "lane " + std::to_string(lane) + " with other children than lane 0";
    }
  }
  return "";
}

std::string check(const TreeInstallation& installation) {
  const StartJob& start = installation.start;
  const Admission& admission = start.admission;
  const std::size_t ranks = start.endpoints.size(), lanes = installation.root.size();
  if (admission.job_epoch == 0) return "a job without an epoch";
  const ProtocolRules all_rules[] = {netreduce_rules(), switchml_rules(), switchml_chip_rules()};
  const auto* const found = std::find_if(std::begin(all_rules), std::end(all_rules),
                                         [&](const ProtocolRules& each) { return each.name == start.protocol; });
  if (found == std::end(all_rules)) return "no protocol that has trees of switches";
  const ProtocolRules& rules = *found;
  const bool rings = found == std::begin(all_rules);
  if (std::string error =
          first_of({check_job_name(start.job), between("number of ranks", ranks, 1, rules.max_world_size),
                    between("number of lanes", lanes, 1, most_lanes), rules.check_packet(admission.packet_elements),
                    check_placement(admission.placement, ranks),
                    rings ? check_members(admission.members, lanes) : between("slots", admission.slots, 1, most_slots)});
      !error.empty()) {
    return error;
  }
  if ((rings ? admission.members.size() : admission.rank_epochs.size()) != ranks) {
    return "endpoints of " + std::to_string(ranks) + " ranks, which are not the job's";
  }
  const std::size_t switches = admission.placement.switches.size();
  if (installation.a_switch >= switches || installation.switches.size() != switches) {
    return "switch " + std::to_string(installation.a_switch) + " of " + std::to_string(switches) + ", of which " +
           std::to_string(installation.switches.size()) + " are somewhere";
  }
  const auto all_hosts = [](const std::vector<Endpoint>& of) { return std::all_of(of.begin(), of.end(), is_host); };
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (start.endpoints[rank].size() != lanes || !all_hosts(start.endpoints[rank])) {
      return "no address of rank " + std::to_string(rank) + " for each of " + std::to_string(lanes) + " lanes";
    }
  }
  for (const std::vector<Endpoint>& of_switch : installation.switches) {
    // A switch that could not be reached yet has no addresses, and sends nothing. It may have unused threads.
    const auto known = [](const Endpoint& endpoint) { return endpoint == Endpoint{} || is_host(endpoint); };
    if (of_switch.size() < lanes || of_switch.size() > most_lanes ||
        !std::all_of(of_switch.begin(), of_switch.end(), known)) {
      return "a switch without an address for each of " + std::to_string(lanes) + " lanes";
    }
  }
  if (!all_hosts(installation.root)) return "an aggregator's address is not a unicast address with a port";
  if (std::string error = rules.check_placement(admission.placement); !error.empty()) return error;
  // The check of the first lane covers all of them.
  const bool sealed = admission.security != PacketSecurity::none;
  if (start.keys.size() != (sealed ? ranks : 0) || start.switch_keys.size() != (sealed ? switches : 0) ||
      static_cast<bool>(admission.results) != sealed) {
    return "other keys than such a job has";
  }
  if (rings) return netreduce::check(tunnel_ring(installation, 0).ring);
  return switchml_job(installation, 0).members.empty() ? "a switch without ranks below" : "";
}

std::string check(const HeartbeatReply& reply) {
  if (reply.reason.size() > longest_text || !printable(reply.reason)) return unprintable("the reason", longest_text);
  if (reply.warning.size() > longest_text || !printable(reply.warning)) return unprintable("the warning", longest_text);
  if (reply.state == HeartbeatReply::State::failed && reply.reason.empty()) return "a failure without a reason";
  if (reply.lost && *reply.lost >= max_world_size) return "the loss of rank " + std::to_string(*reply.lost);
  return "";
}

std::string check(const JobView& view) {
  return view.mismatch.size() <= longest_text && printable(view.mismatch) ? "" : "words on ranks' calls that are none";
}

}  // namespace netsum::session
