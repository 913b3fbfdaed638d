#include "protocol/netreduce/racks.h"

#include <algorithm>
#include <map>

#include "base/bytes.h"

namespace netsum::netreduce {
namespace {

constexpr std::size_t most_switches = 0xffff;  // 16 bits in their addresses
constexpr std::size_t most_levels = 16;        // of switches below the root

std::uint32_t parent_of(const Tree& tree, std::uint32_t switch_id) {
  return tree.parent_of_switch[switch_id];
}

bool below(const Tree& tree, std::uint32_t switch_id, std::uint32_t ancestor) {
  while (switch_id != ancestor && switch_id != at_root) switch_id = parent_of(tree, switch_id);
  return switch_id == ancestor;
}

// The next switch on the path from `from` to `to`.
std::uint32_t hop(const Tree& tree, std::uint32_t from, std::uint32_t to) {
  if (!below(tree, to, from)) return parent_of(tree, from);
  while (parent_of(tree, to) != from) to = parent_of(tree, to);
  return to;
}

std::vector<std::uint32_t> path(const Tree& tree, std::uint32_t from, std::uint32_t to) {
  std::vector<std::uint32_t> switches{from};
  while (switches.back() != to) switches.push_back(hop(tree, switches.back(), to));
  return switches;
}

// The child switches with ranks below them, and those ranks.
std::map<std::uint32_t, RankSet> children_of(const Tree& tree, std::uint32_t switch_id) {
  std::map<std::uint32_t, RankSet> children;
  for (std::uint32_t rank = 0; rank < tree.switch_of_rank.size(); ++rank) {
    std::uint32_t at = tree.switch_of_rank[rank];
    while (at != at_root && parent_of(tree, at) != switch_id) at = parent_of(tree, at);
    if (at != at_root) children[at].insert(rank);
  }
  return children;
}

}  // namespace

std::string check(const Tree& tree) {
  const std::size_t switches = tree.parent_of_switch.size();
  if (switches > most_switches) return std::to_string(switches) + " switches are too many";
  const auto exists = [&](std::uint32_t switch_id) { return switch_id == at_root || switch_id < switches; };
  for (std::uint32_t switch_id = 0; switch_id < switches; ++switch_id) {
    std::uint32_t above = switch_id;
    for (std::size_t steps = 0; above != at_root; ++steps) {
      if (!exists(above) || steps >= most_levels) {
        return "switch " + std::to_string(switch_id) + " has no path of at most " + std::to_string(most_levels) +
               " switches to the switch where the ranks join";
      }
      above = parent_of(tree, above);
    }
  }
  if (!std::all_of(tree.switch_of_rank.begin(), tree.switch_of_rank.end(), exists))
    return "a rank is at a switch that does not exist";
  return "";
}

std::array<std::uint8_t, 16> switch_address(std::uint64_t incarnation, std::uint32_t switch_id) {
  std::array<std::uint8_t, 16> address{0xfd, 'n', 'e', 't', 's', 'u'};
  for (std::size_t i = 0; i < 8; ++i) address[6 + i] = static_cast<std::uint8_t>(incarnation >> (8 * (7 - i)));
  address[14] = static_cast<std::uint8_t>(switch_id >> 8);
  address[15] = static_cast<std::uint8_t>(switch_id);
  return address;
}

TunnelRing tunnel_ring(const RingConfig& ring, const std::vector<Member>& members, const Tree& tree, std::uint32_t switch_id,
                       const Places& places) {
  TunnelRing made{ring, {}};
  const bool on_wire = !places.rank;
  const auto carry = [&](const Connection& connection, const Endpoint& from, const Endpoint& to) {
    made.routes.push_back({connection, from, to});
  };
  const auto ranks = static_cast<std::uint32_t>(members.size());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t successor = (rank + 1) % ranks;
    const std::vector<std::uint32_t> way = path(tree, tree.switch_of_rank[rank], tree.switch_of_rank[successor]);
    const auto here = std::find(way.begin(), way.end(), switch_id);
    if (here == way.end()) continue;
    const bool first = here == way.begin(), last = here + 1 == way.end();
    const Connection data = data_connection(members[rank], members[successor]);
    Endpoint from;
    if (!on_wire) {
      from = first ? places.rank(rank) : places.switch_id(*(here - 1));
      const Endpoint to = last ? places.rank(successor) : places.switch_id(*(here + 1));
      carry(data, from, to);
      carry(answer_connection(members[rank], members[successor]), to, from);
    }
    if (!first && !last) {
      made.ring.passing.push_back(data);
      continue;
    }
    Line& line = made.ring.lines.emplace_back();
    line.connection = data;
    line.ranks.insert(rank);
    line.way = first && last ? Way::through : first ? Way::leaving : Way::arriving;
    if (last) line.answers = answer_connection(members[rank], members[successor]);
    if (ring.selective)
      line.repair = Repair{from, members[rank].send_psn, answer_connection(members[rank], members[successor])};
  }
  const auto address = [&](std::uint32_t s) { return switch_address(ring.incarnation, s); };
  for (const auto& [child, of_child] : children_of(tree, switch_id)) {
    const Connection up{address(child), address(switch_id), up_qp};
    made.ring.lines.push_back({up, of_child, Way::child});
    carry(up, places.switch_id(child), places.switch_id(child));
  }
  if (switch_id != at_root) {
    const std::uint32_t parent = parent_of(tree, switch_id);
    made.ring.uplink = Uplink{{address(switch_id), address(parent), up_qp}, places.switch_id(parent)};
    carry(made.ring.uplink->down(), places.switch_id(parent), places.switch_id(parent));
  }
  return made;
}

}  // namespace netsum::netreduce
