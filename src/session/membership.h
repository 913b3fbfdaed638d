// What a rank asks for, what a job is granted, and what its data plane is told: the same for all protocols, with a part that
// is a protocol's own.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/endpoint.h"
#include "base/shared_list.h"
#include "base/time.h"
#include "netsum/types.h"
#include "seal/packet_key.h"
#include "stream/operation_log.h"

namespace netsum::session {

inline constexpr std::uint32_t most_aggregators = 256;  // of a job
// Of JoinRequest::aggregators, by number.
using SiteSet = BasicRankSet<most_aggregators>;

// Bytes that a protocol's code alone writes and reads (jobs/own_part.h). Membership hands them on.
using OwnPart = std::string;

// What a daemon says of itself before anybody joins, of a protocol's own.
struct Profile {
  std::string protocol;
  OwnPart own;
};
// Null: the daemon says nothing of this protocol.
[[nodiscard]] inline const OwnPart* profile_of(const std::vector<Profile>& profiles, const std::string& protocol) {
  const auto found =
      std::find_if(profiles.begin(), profiles.end(), [&](const Profile& each) { return each.protocol == protocol; });
  return found == profiles.end() ? nullptr : &found->own;
}

// The keys between two neighbours: towards the root, and away from it.
struct HopKeys {
  seal::PacketKey up, down;
};

// A job's topology: the switches between its ranks and the aggregator where they join.
struct Placement {
  static constexpr std::uint32_t at_server = UINT32_MAX;

  std::vector<std::string> switches;            // their addresses
  std::vector<std::uint32_t> parent_of_switch;  // the next one on the way to the aggregator, or at_server
  SharedList<std::uint32_t> switch_of_rank;     // or at_server
};
// The ranks and switches next to a switch of the placement, or to the aggregator.
[[nodiscard]] inline std::size_t neighbours_of(const Placement& placement, std::uint32_t at) {
  return static_cast<std::size_t>(std::count(placement.switch_of_rank.begin(), placement.switch_of_rank.end(), at) +
                                  std::count(placement.parent_of_switch.begin(), placement.parent_of_switch.end(), at));
}
// Where a switch of the placement receives on a lane.
using SwitchEndpoint = std::function<Endpoint(std::uint32_t switch_id, std::size_t lane)>;

enum class Refusal : std::uint8_t {
  none,
  protocol_version,   // the worker speaks another version
  protocol,           // this aggregator does not serve that protocol
  bad_parameters,     // world size, packet length, rank >= world size, lanes
  parameters_differ,  // from the rest of the job
  duplicate_rank,
  no_slots,
  no_memory,
  quota,              // of the tenant: jobs, joins or memory
  job_running,        // the job is complete and running: a rank cannot join it a second time
  results_forgotten,  // a job that recovers: no rank keeps the results that this one still needs
  superseded,         // a later generation of the job is here
  shutting_down,
  draining,  // no new jobs until an operator says otherwise
  ended_by_operator,
  excluded,     // the job went on without this rank
  not_started,  // the daemon's lanes cannot serve the job
};
[[nodiscard]] const char* to_string(Refusal refusal);

// A process of a job, as it says itself: for people.
struct Process {
  std::string host{};    // its name; empty: unknown
  std::uint32_t id = 0;  // of the process on that host; 0: unknown
};

// The job that a person means. No tenant: whosever it is.
struct NamedJob {
  std::string job;
  std::optional<std::string> tenant{};
};

// How far a rank's program is: inside of call `next`, or on its way to it.
struct Pace {
  bool calls = false;      // inside
  std::uint64_t next = 0;  // the first call without a result, or the next one
  // For how long it has been inside of that call, or outside of all; 0 inside of one that waits for all ranks.
  std::chrono::milliseconds since{0};
  bool operator==(const Pace&) const = default;
};

struct JoinRequest {
  std::uint32_t protocol_version = 0;
  std::string protocol;  // "switchml", "atp", "netreduce"
  std::string job;
  std::uint32_t rank = 0, world_size = 0;
  std::uint32_t packet_elements = 0;
  std::uint32_t slots_fixed = 0;     // per lane; 0: agree on enough for the largest measured window
  std::uint32_t slots_measured = 0;  // per lane, in this rank's packets
  // One per lane that the rank has, of the aggregator's first ones: where results go, and contributions come from. The job
  // has as many lanes as the rank with the fewest.
  std::vector<Endpoint> endpoints;
  std::string switch_address;  // the switch that the rank is at; empty: none, or the aggregator itself
  // Of the job: its processes that were started together. A greater one ends a smaller one at once.
  std::uint64_t generation = 0;

  // Jobs that outlive their processes: ranks join again after a rank or an aggregator died.
  bool recovers = false;
  stream::Progress progress;
  std::vector<std::string> aggregators;  // the job's; the same for all ranks
  std::uint32_t standbys = 0;            // how many of them, the last ones, serve only if none of the others can
  std::uint32_t site = 0;                // the number of this one among them
  SiteSet reached{};                     // of them: where this rank joins now
  std::uint32_t former_epoch = 0;        // of this rank, in a life of the job that it gave up; 0: none
  std::uint32_t survivors = 0;           // fewest ranks with which such a job goes on; 0: all
  std::uint32_t life = 0;                // of the job, in which this process was last; 0: in none
  RankSet members{};                     // of that life
  bool lets_in = false;                  // new processes may begin together with this rank
  // A job with survivors that goes on without ranks that are later than the others by so much (session/stragglers.h); 0:
  // none.
  std::chrono::milliseconds straggler_deadline{0};
  Pace pace;               // in such a job, as the attempt to join began
  RankSet aside{};         // in the life `life`: ranks that were late
  bool set_aside = false;  // this rank is one of them, in a life after `life`

  // Shared memory, if all ranks are on the aggregator's host.
  std::uint64_t local_ticket = 0;  // 0: none; why_not_local says why
  std::string why_not_local;
  bool needs_local = false;  // refuse the job rather than run without

  bool listens = false;  // to the job's multicast groups

  std::string tenant;  // the tenant whose token the rank showed; empty: the daemon has no tenants
  Process process;     // that joins

  bool packet_elements_measured = false;   // the path carries so many, and fewer will do: agree on the least
  std::uint64_t switch_receive_bytes = 0;  // of the rank's switch, as RegistryConfig::receive_bytes

  PacketSecurity security = PacketSecurity::none;  // the least that this rank puts up with
  // All packets between the rank and the aggregator take the loopback device: it does without seals.
  bool near = false;

  // Proof that the endpoints receive packets from the aggregator's lanes, and from the switch's: one per endpoint.
  std::vector<std::uint64_t> cookies, switch_cookies;

  OwnPart own;
};

// What seals a rank's packets: to the aggregator, and from it to this rank alone. No other rank has them.
using RankKeys = HopKeys;

struct Admission {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank_epoch = 0;
  SharedList<std::uint32_t> rank_epochs;  // of all members, as all lists of ranks in here
  std::uint32_t packet_elements = 0;
  std::uint32_t slots = 0;  // per lane
  std::uint32_t lanes = 1;  // the first ones of this rank
  Placement placement;      // if the protocol has switches
  stream::Resumption resumption;
  std::uint32_t life = 1;                          // the number of this life of the job
  SiteSet sites{};                                 // a job that recovers: the aggregators that serve this life
  RankSet aside{};                                 // late ranks, without which it began; to one of them only `life`,
                                                   // `sites`, the members and this say anything
  bool local = false;                              // the ranks sum in shared memory
  std::string why_not_local;                       // names a rank
  PacketSecurity security = PacketSecurity::none;  // of packets between hosts
  seal::PacketKey results;                         // seals what goes to all ranks, which all have it
  RankKeys keys;                                   // this rank's; none: its packets do without, as it is near
  OwnPart own;                                     // of all ranks, or a rank's share of it (ProtocolRules::Own::shares)
};

// A join's outcome: an admission (once all ranks are there), a refusal with its reason, or nothing yet.
struct JoinOutcome {
  Refusal refusal = Refusal::none;
  std::string reason;  // what is wrong, and what to do
  std::optional<Admission> admission;
};

// For the runtime: a complete job to start on the lanes, or one to stop.
struct StartJob {
  Admission admission;
  std::string job, tenant;
  std::string protocol;                                    // ProtocolRules::name
  std::vector<std::vector<Endpoint>> endpoints;            // [rank][lane], of Admission::lanes
  bool switches_needed = false;                            // the job cannot do without any switch of its placement
  Duration switch_patience{};                              // with a switch that is silent; 0: the usual one
  bool watched = false;                                    // ProtocolRules::watched
  std::vector<std::uint64_t> local_tickets;                // by rank, if it is local
  std::vector<bool> listens;                               // by rank: to the job's multicast groups
  std::vector<RankKeys> keys;                              // by rank, if the job's packets are sealed; none: it is near
  std::vector<RankKeys> switch_keys;                       // by switch of the placement: of the switch and its parent
  std::vector<std::vector<std::uint64_t>> switch_cookies;  // [rank][lane]: for the switch that the rank is at
  std::string warning;                                     // about a request that may perform badly; empty: none
};
[[nodiscard]] inline std::size_t lanes_of(const StartJob& start) {
  return start.endpoints.front().size();
}
struct StopJob {
  std::uint64_t job_epoch;
};

}  // namespace netsum::session
