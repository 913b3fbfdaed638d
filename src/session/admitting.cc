#include "session/admitting.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/bytes.h"
#include "seal/sealer.h"
#include "session/check.h"

namespace netsum::session {
namespace {

constexpr std::uint32_t least_slots = 2;  // a measured window is halved down to this before a job is refused

// A packet's share of a receive buffer. The kernel charges the memory that holds it: a network card's driver gives each
// frame a page, or half of one, and the kernel's structures add less than a kilobyte. So packets that fill their frames take
// less than twice their length; on loopback, hardly more than their length.
[[nodiscard]] std::uint64_t charged_bytes(std::uint32_t packet_elements) {
  constexpr std::uint64_t structures = 1024;
  return std::uint64_t{packet_elements} * 4 * 2 + structures;
}

JoinOutcome differ(const std::string& reason) {
  return {Refusal::parameters_differ, reason, {}};
}

JoinOutcome compare_packets(const JoinRequest& other, const JoinRequest& request) {
  if (other.packet_elements_measured && request.packet_elements_measured) return {};
  const auto elements = [](const JoinRequest& of) { return std::to_string(of.packet_elements); };
  if (!other.packet_elements_measured && !request.packet_elements_measured) {
    if (other.packet_elements == request.packet_elements) return {};
    return differ("rank " + std::to_string(request.rank) + " joined job '" + request.job + "' with elements per packet " +
                  elements(request) + ", rank " + std::to_string(other.rank) + " with " + elements(other) +
                  ": all ranks must give the same");
  }
  const JoinRequest& asking = other.packet_elements_measured ? request : other;
  const JoinRequest& measuring = other.packet_elements_measured ? other : request;
  if (asking.packet_elements <= measuring.packet_elements) return {};
  return differ("rank " + std::to_string(asking.rank) + " of job '" + request.job + "' asks for packets of " +
                elements(asking) + " elements, and the path of rank " + std::to_string(measuring.rank) + " takes at most " +
                elements(measuring) + ": ask for fewer elements per packet, or for 0 (measured)");
}

// Whether the ranks sum in shared memory; if not, why. False: a rank requires it, and another is without.
bool decide_local(const Requests& ranks, Plan& plan) {
  const auto without =
      std::find_if(ranks.begin(), ranks.end(), [](const JoinRequest* rank) { return rank->local_ticket == 0; });
  plan.local = without == ranks.end();
  if (plan.local) return true;
  plan.why_not_local = "rank " + std::to_string((*without)->rank) + " does not use it: " + (*without)->why_not_local;
  const auto needy = std::find_if(ranks.begin(), ranks.end(), [](const JoinRequest* rank) { return rank->needs_local; });
  if (needy == ranks.end()) return true;
  plan.refusal = Refusal::bad_parameters;
  plan.reason = "rank " + std::to_string((*needy)->rank) + " requires shared memory, but " + plan.why_not_local;
  return false;
}

// As many slots as were asked for, or as fit. False: too few do.
bool charge(const Requests& ranks, const ProtocolRules& rules, const Supply& supply, Plan& plan) {
  const JoinRequest& first = *ranks.front();
  const std::uint64_t seals =
      seal::link_bytes(security_of(ranks, rules, supply.config)) * (ranks.size() + plan.placement.switches.size());
  std::uint64_t units = 0;
  std::string no_memory;
  const auto fits = [&] {
    const Terms terms{static_cast<std::uint32_t>(ranks.size()), plan.packet_elements, plan.slots, plan.placement, plan.own};
    const Cost cost = rules.cost(terms);
    units = std::uint64_t{cost.units} * plan.lanes * plan.slots;
    plan.memory_bytes = (cost.memory + seals) * plan.lanes;
    no_memory = supply.memory.check(first.tenant, plan.memory_bytes, supply.memory_quota);
    return units <= supply.slots_free && no_memory.empty() && check_terms(rules, terms).empty();
  };
  while (!fits() && first.slots_fixed == 0 && plan.slots > least_slots) plan.slots /= 2;
  if (units > supply.slots_free) {
    plan.refusal = Refusal::no_slots;
    plan.reason = "it needs " + std::to_string(units) + " slots of " + std::to_string(slot_elements) + " elements (" +
                  std::to_string(plan.slots) + " per lane), and " + std::to_string(supply.slots_free) + " of " +
                  std::to_string(supply.config.slots) +
                  " are free: start the switch with a larger --slots, or ask for fewer";
    return false;
  }
  if (!no_memory.empty()) {
    plan.refusal = Refusal::no_memory;
    plan.reason = "with " + std::to_string(plan.slots) + " slots per lane, " + no_memory;
    return false;
  }
  plan.charged = static_cast<std::uint32_t>(units);
  return true;
}

}  // namespace

JoinOutcome compare(const Requests& joined, const JoinRequest& request, const ProtocolRules& rules) {
  const JoinRequest& first = *joined.front();
  const auto differs = [&](const char* what, std::uint32_t theirs, std::uint32_t ours) {
    return differ("rank " + std::to_string(request.rank) + " joined job '" + request.job + "' with " + what + " " +
                  std::to_string(ours) + ", rank " + std::to_string(first.rank) + " with " + std::to_string(theirs) +
                  ": all ranks must give the same");
  };
  if (first.world_size != request.world_size) return differs("world size", first.world_size, request.world_size);
  if (first.protocol != request.protocol) {
    return differ("rank " + std::to_string(request.rank) + " joined job '" + request.job + "' for " + request.protocol +
                  ", rank " + std::to_string(first.rank) + " for " + first.protocol + ": all ranks must give the same");
  }
  if (const auto difference = compare(rules, first, request)) {
    return differs(difference->what, difference->first, difference->second);
  }
  for (const JoinRequest* const other : joined) {
    if (JoinOutcome outcome = compare_packets(*other, request); outcome.refusal != Refusal::none) return outcome;
  }
  if (first.slots_fixed != request.slots_fixed) return differs("slots", first.slots_fixed, request.slots_fixed);
  if (first.recovers != request.recovers) return differs("recovery", first.recovers, request.recovers);
  if (first.survivors != request.survivors) return differs("survivors", first.survivors, request.survivors);
  if (first.straggler_deadline != request.straggler_deadline) {
    return differs("straggler deadline (ms)", static_cast<std::uint32_t>(first.straggler_deadline.count()),
                   static_cast<std::uint32_t>(request.straggler_deadline.count()));
  }
  if (first.standbys != request.standbys) return differs("standbys", first.standbys, request.standbys);
  if (first.aggregators != request.aggregators) {
    return differ("rank " + std::to_string(request.rank) + " of job '" + request.job + "' joins at " +
                  list(request.aggregators) + ", rank " + std::to_string(first.rank) + " at " + list(first.aggregators) +
                  ": give all ranks the same list, and check that all can reach these aggregators");
  }
  return {};
}

Placement place(const Requests& ranks, const std::map<std::string, std::string>& switch_parents) {
  Placement placement;
  std::map<std::string, std::uint32_t> known;
  const std::function<std::uint32_t(const std::string&)> index_of = [&](const std::string& address) {
    if (address.empty()) return Placement::at_server;
    const auto [found, added] = known.emplace(address, static_cast<std::uint32_t>(placement.switches.size()));
    const std::uint32_t index = found->second;
    if (!added) return index;
    placement.switches.push_back(address);
    placement.parent_of_switch.push_back(Placement::at_server);
    if (const auto parent = switch_parents.find(address); parent != switch_parents.end()) {
      const std::uint32_t above = index_of(parent->second);
      placement.parent_of_switch[index] = above;
    }
    return index;
  };
  std::vector<std::uint32_t> switch_of_rank;
  for (const JoinRequest* const rank : ranks) switch_of_rank.push_back(index_of(rank->switch_address));
  placement.switch_of_rank = std::move(switch_of_rank);
  return placement;
}

std::uint32_t agreed_packet_elements(const Requests& ranks) {
  return (*std::min_element(ranks.begin(), ranks.end(),
                            [](const auto* a, const auto* b) { return a->packet_elements < b->packet_elements; }))
      ->packet_elements;
}

std::uint32_t agreed_lanes(const Requests& ranks) {
  std::size_t lanes = SIZE_MAX;
  for (const JoinRequest* const rank : ranks) lanes = std::min(lanes, rank->endpoints.size());
  return static_cast<std::uint32_t>(lanes);
}

std::uint32_t longest_window(const Requests& ranks, std::uint32_t packet_elements) {
  std::uint64_t elements = 0;
  for (const JoinRequest* const rank : ranks) {
    elements = std::max(elements, std::uint64_t{rank->slots_measured} * rank->packet_elements);
  }
  const std::uint64_t packets = (elements + packet_elements - 1) / packet_elements;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(packets, UINT32_MAX / 2));
}

std::uint32_t most_in_flight(const Requests& ranks, const Placement& placement, std::uint64_t receive_bytes,
                             std::uint32_t packet_elements, std::uint32_t packets_of_slot) {
  struct Node {
    std::uint64_t buffer = 0, ranks = 0;
  };
  std::map<std::uint32_t, Node> at;  // by switch
  at[Placement::at_server].buffer = receive_bytes;
  for (std::size_t number = 0; number < ranks.size(); ++number) {
    Node& node = at[placement.switch_of_rank[number]];
    const std::uint64_t own = ranks[number]->switch_receive_bytes;
    if (!ranks[number]->switch_address.empty() && own != 0)
      node.buffer = node.buffer == 0 ? own : std::min(node.buffer, own);
    ++node.ranks;
  }
  const std::uint64_t of_slot = charged_bytes(packet_elements) * std::max(1U, packets_of_slot);
  std::uint64_t most = UINT32_MAX;
  for (const auto& [switch_id, node] : at) {
    if (node.buffer != 0 && node.ranks != 0) most = std::min(most, node.buffer / (of_slot * node.ranks));
  }
  return static_cast<std::uint32_t>(most);
}

Plan plan(const Requests& ranks, const ProtocolRules& rules, const Supply& supply) {
  const JoinRequest& first = *ranks.front();
  Plan plan;
  const auto refuse = [&](Refusal refusal, std::string reason) {
    plan.refusal = refusal;
    plan.reason = std::move(reason);
    return plan;
  };
  plan.placement = place(ranks, supply.config.switch_parents);
  plan.packet_elements = agreed_packet_elements(ranks);
  plan.lanes = agreed_lanes(ranks);
  Gathered gathered{ranks, plan.placement, {}, supply.others, plan.packet_elements, 0};
  gathered.lanes = plan.lanes;
  if (first.slots_fixed == 0) gathered.window = longest_window(ranks, plan.packet_elements);
  const std::uint32_t least = first.slots_fixed != 0 ? first.slots_fixed : least_slots;
  gathered.room = supply.slots_free / plan.lanes / least;
  for (const std::string& switch_id : plan.placement.switches) {
    if (const OwnPart* const said = supply.said(switch_id)) gathered.parents.push_back(said);
  }
  std::vector<stream::Progress> progress;
  for (const JoinRequest* const rank : ranks) progress.push_back(rank->progress);
  if (std::string error = stream::agree(progress, plan.resumption); !error.empty()) {
    return refuse(Refusal::results_forgotten, std::move(error));
  }
  if (std::string error = rules.check_placement(plan.placement); !error.empty()) {
    return refuse(Refusal::bad_parameters, std::move(error));
  }
  Agreement agreement = agree(rules, gathered);
  if (agreement.refusal != Refusal::none) return refuse(agreement.refusal, std::move(agreement.reason));
  plan.own = std::move(agreement.own);
  if (!decide_local(ranks, plan)) return plan;

  const std::uint32_t most =
      most_in_flight(ranks, plan.placement, supply.config.receive_bytes, plan.packet_elements, agreement.packets_of_slot);
  plan.slots = first.slots_fixed;
  if (plan.slots == 0) {
    plan.slots = std::bit_ceil(std::clamp(agreement.slots, least_slots, most_slots));
    while (plan.slots > most && plan.slots > least_slots) plan.slots /= 2;
  }
  if (!charge(ranks, rules, supply, plan)) return plan;
  if (first.slots_fixed > most) {
    plan.warning = "the job asked for " + std::to_string(plan.slots) +
                   " slots per lane, but the aggregator's receive buffer holds only " + std::to_string(most) +
                   " packets of each rank, and bursts will be lost: ask for fewer slots, or raise net.core.rmem_max on the "
                   "aggregator's host";
  }
  if (!plan.local) plan.security = security_of(ranks, rules, supply.config);
  return plan;
}

seal::PacketKey random_key(const std::function<std::uint64_t()>& random) {
  seal::PacketKey::Bytes bytes;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) store_le(bytes.data() + at, random());
  const seal::PacketKey key(bytes);
  seal::wipe(bytes);
  return key;
}

PacketSecurity security_of(const Requests& ranks, const ProtocolRules& rules, const RegistryConfig& config) {
  if (!rules.sealed || !config.keys) return PacketSecurity::none;
  PacketSecurity security = config.security;
  for (const JoinRequest* const rank : ranks) {
    if (!rank->switch_address.empty() && !config.keys_below) return PacketSecurity::none;
    security = std::max(security, rank->security);
  }
  return security;
}

std::string why_no_keys(const JoinRequest& request, const ProtocolRules& rules, const RegistryConfig& config) {
  if (request.near || (request.security == PacketSecurity::none && !config.keys_required)) return "";
  const std::string needs = request.security == PacketSecurity::none
                                ? "this aggregator requires packet keys"
                                : "rank " + std::to_string(request.rank) + " requires packet keys";
  if (!rules.sealed) return needs + ", and " + rules.name + " does not support them";
  if (!config.keys) {
    return needs + ", and keys require TLS: start the aggregator with --tls-cert and --tls-key";
  }
  if (!request.switch_address.empty() && !config.keys_below) {
    return needs + ", and keys for switches require TLS to the switches: start the aggregator with --tls-ca";
  }
  return "";
}

std::string list(const std::vector<std::string>& names) {
  constexpr std::size_t enough = 500;
  std::string text;
  for (const std::string& name : names) {
    if (text.size() > enough) return text + ", ... (" + std::to_string(names.size()) + " in all)";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

}  // namespace netsum::session
