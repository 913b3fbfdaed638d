// A protocol's rules, as far as membership at an aggregator depends on them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "netsum/types.h"
#include "seal/packet_key.h"

namespace netsum::session {

// The keys between two neighbours: towards the root, and away from it.
struct HopKeys {
  seal::PacketKey up, down;
};

// A job's topology: the switches between its ranks and the aggregator where they join.
struct Placement {
  static constexpr std::uint32_t at_server = UINT32_MAX;

  std::vector<std::string> switches;            // their addresses
  std::vector<std::uint32_t> parent_of_switch;  // the next one on the way to the parameter server, or at_server
  std::vector<std::uint32_t> switch_of_rank;    // or at_server
  std::uint32_t pool_slots = 0;                 // the smallest known pool; 0: no rank is at a switch
  std::uint32_t indexing = 0;                   // atp::Indexing, as the parameter server says
  std::uint32_t part = 0, parts = 0;            // this job's own part of each pool; parts 0: it has none
  std::uint32_t scaling = 0;                    // atp::Scaling, as the parameter server says
};

// The lane of an ATP switch that serves one of a job's lanes. Jobs start at different switch lanes, so that all of a
// switch's threads have work even if its servers have few; a job's lanes get distinct ones, as a switch has at least as
// many. Where it has as many, each lane has the same number at all nodes: with pinned threads all of its work on a host is
// one processor's. Worker, switch and server compute the same value; job epochs are random.
[[nodiscard]] constexpr std::size_t switch_lane(std::uint64_t job_epoch, std::size_t lane, std::size_t job_lanes,
                                                std::size_t lanes) {
  return (static_cast<std::size_t>(job_epoch % lanes) * job_lanes + lane) % lanes;
}

// A job's own slots of each pool; count 0: it shares all.
struct Part {
  std::uint32_t first = 0, count = 0;
  bool operator==(const Part&) const = default;
};
[[nodiscard]] constexpr Part part_of(const Placement& placement) {
  if (placement.parts == 0) return {};
  const std::uint32_t count = std::max(1U, placement.pool_slots / placement.parts);
  return {placement.part * count, count};
}

// Where a switch of the placement receives on a lane.
using SwitchEndpoint = std::function<Endpoint(std::uint32_t a_switch, std::size_t lane)>;

// An ATP job, as one of those switches must know it.
struct Installation {
  struct Child {
    Endpoint endpoint;
    bool is_switch = false;
    std::uint32_t rank_epoch = 0;      // of a rank
    std::vector<std::uint32_t> ranks;  // the rank itself, or those below the switch
    std::uint64_t cookie = 0;          // of a rank: proof that its endpoint receives this switch's packets
    HopKeys keys{};                    // of a job whose packets are sealed; none: a rank on the switch's host
  };
  struct Lane {
    Endpoint parent;  // the next switch's lane, or the aggregator's
    std::vector<Child> children;
    HopKeys keys{};  // of this switch and its parent
    Endpoint own{};  // this switch's, as its parent knows it
  };
  std::string job;  // its name
  std::uint64_t job_epoch = 0;
  std::uint32_t folded_epochs = 0;
  std::uint32_t packet_elements = 0, window = 0;
  std::uint32_t level = 0, next_level = 0;
  bool saturating = false;
  Part part;
  std::vector<Lane> lanes;
  PacketSecurity security = PacketSecurity::none;
  // The job was told before, to this switch or to one that has restarted since: if it does not know the job now, it has lost
  // the numbers of the packets that it sealed, and may seal no others with these keys.
  bool again = false;
};

// The ranks and switches next to a switch of the placement, or to the server.
[[nodiscard]] inline std::size_t neighbours_of(const Placement& placement, std::uint32_t at) {
  return static_cast<std::size_t>(std::count(placement.switch_of_rank.begin(), placement.switch_of_rank.end(), at) +
                                  std::count(placement.parent_of_switch.begin(), placement.parent_of_switch.end(), at));
}

struct JoinRequest;

// A window of `count` messages.
struct Messages {
  std::uint32_t packets = 0;  // of each
  std::uint32_t count = 0;
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
  std::function<std::string(const JoinRequest& request)> check_request;  // the request's other fields
  // How many of an aggregator's slots, of 256 elements each, one of a job's slots takes.
  std::function<std::uint32_t(const JoinRequest& request)> units;
  // All bytes that one lane of a job takes at the aggregator. `request` has the agreed slots (slots_fixed).
  std::function<std::uint64_t(const JoinRequest& request, const Placement& placement)> memory_bytes;
  // How a window of `packets` is made of messages of `asked` packets; 0: of a length that suits the window, and the longest
  // if `packets` is 0 too. Empty: the protocol has no messages.
  std::function<Messages(std::uint32_t packets, std::uint32_t asked, std::uint32_t packet_elements)> messages;
};
// For protocols whose slots hold a packet each.
[[nodiscard]] std::uint32_t units_of_packet(const JoinRequest& request);
// For protocols without rings: refuses a request that names queue pairs.
[[nodiscard]] std::string check_no_ring(const JoinRequest& request);

[[nodiscard]] ProtocolRules switchml_rules();

}  // namespace netsum::session
