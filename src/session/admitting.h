// How the ranks of a job become one, stage by stage: compare, while they join; then place, agree, window, charge, and keys.
// Each stage is a function of the requests and of what the aggregator has. The registry keeps what comes out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "session/membership.h"
#include "session/memory_account.h"
#include "session/protocol_rules.h"
#include "session/registry.h"

namespace netsum::session {

using Requests = std::vector<const JoinRequest*>;  // of a job's ranks, in order

// ---- compare

// A refusal if the request does not fit those that have joined its job.
[[nodiscard]] JoinOutcome compare(const Requests& joined, const JoinRequest& request, const ProtocolRules& rules);

// ---- place

// The switches that the ranks are at, and those upstream of them.
[[nodiscard]] Placement place(const Requests& ranks, const std::map<std::string, std::string>& switch_parents);

// ---- agree

// A length that a rank asks for is used if all paths carry it (compare()). If no rank asks for one, the least measured one
// is.
[[nodiscard]] std::uint32_t agreed_packet_elements(const Requests& ranks);

// As many as all ranks have. The rank that limits them has measured its window for so many.
[[nodiscard]] std::uint32_t agreed_lanes(const Requests& ranks);

// ---- window

// The longest window that a rank measured, each with its own packet length, in packets of `packet_elements`.
[[nodiscard]] std::uint32_t longest_window(const Requests& ranks, std::uint32_t packet_elements);
// How many slots per rank fit into the receive buffers on the path, if all arrive at once. A switch receives from the ranks
// next to it, this aggregator from ranks at no switch: switches merge the packets that pass them. `receive_bytes`: of this
// aggregator's lane; 0: unknown.
[[nodiscard]] std::uint32_t most_in_flight(const Requests& ranks, const Placement& placement, std::uint64_t receive_bytes,
                                           std::uint32_t packet_elements, std::uint32_t packets_of_slot);

// ---- all of them, and charge

// What the aggregator has for a job.
struct Supply {
  const RegistryConfig& config;
  std::uint32_t slots_free = 0;
  const MemoryAccount& memory;
  std::uint64_t memory_quota = 0;  // of the job's tenant
  std::vector<const OwnPart*> others;
  std::function<const OwnPart*(const std::string& switch_id)> said;  // by a switch, for the protocol; null: nothing
};
struct Plan {
  Refusal refusal = Refusal::none;
  std::string reason{};  // without the job's name
  Placement placement{};
  stream::Resumption resumption{};
  OwnPart own{};
  std::uint32_t packet_elements = 0, slots = 0, lanes = 0;
  std::uint32_t charged = 0;       // of the aggregator's slots
  std::uint64_t memory_bytes = 0;  // of all lanes
  bool local = false;
  std::string why_not_local{};
  PacketSecurity security = PacketSecurity::none;  // of packets, which jobs in shared memory have none of
  std::string warning{};
};
[[nodiscard]] Plan plan(const Requests& ranks, const ProtocolRules& rules, const Supply& supply);

// ---- keys

[[nodiscard]] seal::PacketKey random_key(const std::function<std::uint64_t()>& random);
// What protects the packets of a job of these ranks.
[[nodiscard]] PacketSecurity security_of(const Requests& ranks, const ProtocolRules& rules, const RegistryConfig& config);
// Empty if the rank's job can have keys, or if neither the aggregator nor the rank needs them.
[[nodiscard]] std::string why_no_keys(const JoinRequest& request, const ProtocolRules& rules, const RegistryConfig& config);

// As many as one line holds.
[[nodiscard]] std::string list(const std::vector<std::string>& names);

}  // namespace netsum::session
