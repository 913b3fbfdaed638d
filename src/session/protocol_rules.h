// What membership needs to know of the protocol that an aggregator serves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/endpoint.h"

namespace netsum::session {

// Where a job's ranks stand: the switches between them and the aggregator where they join.
struct Placement {
  static constexpr std::uint32_t at_server = UINT32_MAX;

  std::vector<std::string> switches;            // their addresses
  std::vector<std::uint32_t> parent_of_switch;  // the next one on the way to the parameter server, or at_server
  std::vector<std::uint32_t> switch_of_rank;    // or at_server
  std::uint32_t pool_slots = 0;                 // the fewest that one has, of those that are known; 0: no rank is at one
  std::uint32_t indexing = 0;                   // atp::Indexing, as the parameter server says
  std::uint32_t part = 0, parts = 0;            // of each pool, that is this job's alone; parts 0: none is
  std::uint32_t scaling = 0;                    // atp::Scaling, likewise
};

// The lane of an ATP switch that serves a job's lane there. Jobs begin at different ones, so that all of a switch's threads
// have work, however few its servers have; and a job's lanes have one each, as a switch has at least as many. Worker, switch
// and server derive it alike: job epochs are random.
[[nodiscard]] constexpr std::size_t switch_lane(std::uint64_t job_epoch, std::size_t lane, std::size_t lanes) {
  return (static_cast<std::size_t>(job_epoch % lanes) + lane) % lanes;
}

// Slots of each pool that are a job's alone; none: it shares all.
struct Part {
  std::uint32_t first = 0, count = 0;
  bool operator==(const Part&) const = default;
};
[[nodiscard]] constexpr Part part_of(const Placement& placement) {
  if (placement.parts == 0) return {};
  const std::uint32_t count = std::max(1U, placement.pool_slots / placement.parts);
  return {placement.part * count, count};
}

// Where a switch of the placement receives, on a lane.
using SwitchEndpoint = std::function<Endpoint(std::uint32_t a_switch, std::size_t lane)>;

// What one of those switches must know of an ATP job, on each of its lanes.
struct Installation {
  struct Child {
    Endpoint endpoint;
    bool is_switch = false;
    std::uint32_t rank_epoch = 0;      // of a rank
    std::vector<std::uint32_t> ranks;  // it, or those below the switch
    std::uint64_t cookie = 0;          // of a rank: shows that its endpoint receives what this switch sends
  };
  struct Lane {
    Endpoint parent;  // the next switch's lane, or the aggregator's
    std::vector<Child> children;
  };
  std::string job;  // its name
  std::uint64_t job_epoch = 0;
  std::uint32_t folded_epochs = 0;
  std::uint32_t packet_elements = 0, window = 0;
  std::uint32_t level = 0, next_level = 0;
  bool saturating = false;
  Part part;
  std::vector<Lane> lanes;
};

struct JoinRequest;

struct ProtocolRules {
  std::string name;  // as in JoinRequest
  std::uint32_t version = 0;
  std::uint32_t max_world_size = 0;
  bool switches = false;         // ranks name the switch that they are at
  bool switches_needed = false;  // and cannot do without it
  bool watched = false;          // packets tell ranks of no stall and no mismatch: the control plane looks for them
  // Each empty, or why a job cannot have this.
  std::function<std::string(std::uint32_t packet_elements)> check_packet;
  std::function<std::string(const Placement& placement)> check_placement;
  std::function<std::string(const JoinRequest& request)> check_request;  // whatever else it says
  // What one of a job's slots takes of an aggregator's, which have 256 elements.
  std::function<std::uint32_t(const JoinRequest& request)> units;
  // Bytes that one lane of a job takes at the aggregator, all of it. `request` has the agreed slots (slots_fixed).
  std::function<std::uint64_t(const JoinRequest& request, const Placement& placement)> memory_bytes;
  // The length of a message where no rank asks for one; empty: there are no messages.
  std::function<std::uint32_t(std::uint32_t packet_elements)> message_packets;
};
// Of protocols whose slots hold a packet each.
[[nodiscard]] std::uint32_t units_of_packet(const JoinRequest& request);
// Of protocols without rings: a request that names queue pairs is none of theirs.
[[nodiscard]] std::string check_no_ring(const JoinRequest& request);

[[nodiscard]] ProtocolRules switchml_rules();

}  // namespace netsum::session
