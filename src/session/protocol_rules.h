// A protocol's rules, as far as membership at an aggregator depends on them. What is a protocol's own in a request or an
// admission, its rules alone read, check, agree on, charge and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "session/membership.h"

namespace netsum::session {

inline constexpr std::uint32_t slot_elements = 256;  // of one of an aggregator's slots

// A job whose ranks are all there.
struct Gathered {
  std::vector<const JoinRequest*> ranks;  // by rank
  const Placement& placement;
  std::vector<const OwnPart*> parents;  // what the placement's switches that no rank names said of themselves
  std::vector<const OwnPart*> others;   // Agreement::own of this protocol's running jobs here
  std::uint32_t packet_elements = 0;    // agreed on
  std::uint32_t window = 0;             // in packets, the longest that a rank measured; 0: none, or the slots are given
  std::uint32_t room = UINT32_MAX;      // Cost::units of a slot with which the shortest window fits into what is free
  std::uint32_t lanes = 1;              // agreed on
};
struct Agreement {
  OwnPart own;                        // StartJob::admission's
  std::uint32_t slots = 0;            // that the window takes
  std::uint32_t packets_of_slot = 1;  // of each rank
  Refusal refusal = Refusal::none;
  std::string reason{};
};

// What the ranks of a job have agreed on.
struct Terms {
  std::uint32_t world_size = 0, packet_elements = 0, slots = 0;
  const Placement& placement;
  const OwnPart& own;
};
struct Cost {
  std::uint32_t units = 1;   // of the aggregator's slots, for one of the job's
  std::uint64_t memory = 0;  // in bytes, all that one lane of the job takes at the aggregator
};

// What two ranks ask for differently.
struct Difference {
  const char* what;
  std::uint32_t first, second;
};

struct ProtocolRules {
  std::string name;  // as in JoinRequest
  std::uint32_t version = 0;
  std::uint32_t max_world_size = 0;
  bool switches = false;         // ranks name their switch
  bool switches_needed = false;  // ranks cannot do without their switch
  bool sealed = false;           // its packets can be: ranks get keys
  bool watched = false;          // packets tell ranks of no stall or mismatch: the control plane looks for them

  // Each returns an empty string, or why a job cannot have these values.
  std::function<std::string(std::uint32_t packet_elements)> check_packet;
  std::function<std::string(const Placement& placement)> check_placement;
  std::function<Cost(const Terms& terms)> cost;

  // For protocols with data of their own in joins; without it, a slot holds a packet.
  struct Own {
    std::function<std::string(const JoinRequest& request)> check_request;
    std::function<std::optional<Difference>(const JoinRequest& first, const JoinRequest& second)> compare;
    std::function<Agreement(const Gathered& gathered)> agree;
    std::function<std::string(const Terms& terms)> check_terms;
    // What of Agreement::own each of so many ranks is told; none: each is told all of it.
    std::function<std::vector<OwnPart>(const OwnPart& own, std::uint32_t ranks)> shares;
    // That a rank which asked for this can work with it; at the rank.
    std::function<std::string(const Admission& admission, const JoinRequest& asked)> check_admission;
  };
  std::optional<Own> own;
};
// For protocols whose slots hold a packet each: Cost::units.
[[nodiscard]] constexpr std::uint32_t units_of_packet(std::uint32_t packet_elements) {
  return packet_elements <= slot_elements ? 1 : (packet_elements + slot_elements - 1) / slot_elements;
}

[[nodiscard]] std::string check_request(const ProtocolRules& rules, const JoinRequest& request);
[[nodiscard]] std::optional<Difference> compare(const ProtocolRules& rules, const JoinRequest& first,
                                                const JoinRequest& second);
[[nodiscard]] Agreement agree(const ProtocolRules& rules, const Gathered& gathered);
[[nodiscard]] std::string check_terms(const ProtocolRules& rules, const Terms& terms);
[[nodiscard]] std::vector<OwnPart> shares(const ProtocolRules& rules, const OwnPart& own, std::uint32_t ranks);
[[nodiscard]] std::string check_admission(const ProtocolRules& rules, const Admission& admission, const JoinRequest& asked);

}  // namespace netsum::session
