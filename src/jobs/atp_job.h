// ATP's jobs: the rules of their admission, with what is ATP's own in it, and the configuration of parameter servers,
// switches and ranks (ATP §3.2: dynamic job setup).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "jobs/slot_parts.h"
#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"
#include "protocol/atp/topology.h"
#include "protocol/atp/worker.h"
#include "protocol/atp/worker_lane.h"
#include "seal/hops.h"
#include "session/protocol_rules.h"
#include "session/switch_message.h"

namespace netsum::jobs {

struct AtpSettings {
  atp::Indexing indexing = atp::Indexing::rehash;
  atp::Overflow overflow = atp::Overflow::exact;
  atp::Scaling scaling = atp::Scaling::fixed;
  atp::Rules rules = atp::Rules::netsum;
};
using AtpSettingsOf = std::function<AtpSettings(const std::string& job)>;
// A server's parts of each switch's slots, one per job. count 0: jobs share all slots; own 0: all from the first.
struct AtpParts {
  std::uint32_t count = 0, first = 0, own = 0;
};

// ---- ATP's own

// What a switch says of itself.
struct AtpPool {
  std::uint32_t slots = 0, elements = 0;  // of each lane
};
[[nodiscard]] session::Profile pool_profile(const AtpPool& pool);
// None: that daemon has no pool.
[[nodiscard]] std::optional<AtpPool> pool_in(const std::vector<session::Profile>& profiles);
// What a rank asks for.
struct AtpAsk {
  std::uint32_t pool_slots = 0;  // of its switch; 0: it is at none
};
// What its job is granted.
struct AtpGrant {
  std::uint32_t pool_slots = 0;       // the smallest known pool; 0: no rank is at a switch
  std::uint32_t part = 0, parts = 0;  // the job's own part of each pool; parts 0: it has none
  atp::Indexing indexing = atp::Indexing::rehash;
  atp::Scaling scaling = atp::Scaling::fixed;
  atp::Rules rules = atp::Rules::netsum;
};
[[nodiscard]] session::OwnPart own_part(const AtpAsk& ask);
[[nodiscard]] session::OwnPart own_part(const AtpGrant& grant);
[[nodiscard]] AtpGrant atp_grant(const session::Admission& admission);  // that was checked
[[nodiscard]] SlotPart slot_part_of(const AtpGrant& grant);

// `settings`, `parts`: of the server where ranks join.
[[nodiscard]] session::ProtocolRules atp_rules(const AtpSettingsOf& settings = {}, const AtpParts& parts = {});

// ---- a job as a switch of its placement must know it

struct AtpInstallation {
  struct Child {
    Endpoint endpoint;
    bool is_switch = false;
    std::uint32_t rank_epoch = 0;      // of a rank
    std::vector<std::uint32_t> ranks;  // the rank itself, or those below the switch
    std::uint64_t cookie = 0;          // of a rank: proof that its endpoint receives this switch's packets
    session::HopKeys keys{};           // of a job whose packets are sealed; none: a rank on the switch's host
  };
  struct Lane {
    Endpoint parent;  // the next switch's lane, or the server's
    std::vector<Child> children;
    session::HopKeys keys{};  // of this switch and its parent
    Endpoint own{};           // this switch's, as its parent knows it
  };
  std::string job;  // its name
  std::uint64_t job_epoch = 0;
  std::uint32_t folded_epochs = 0;
  std::uint32_t packet_elements = 0, window = 0;
  std::uint32_t level = 0, next_level = 0;
  bool saturating = false;
  SlotPart part;
  std::vector<Lane> lanes;
  PacketSecurity security = PacketSecurity::none;
  bool again = false;  // as SwitchMessage's
  atp::Rules rules = atp::Rules::netsum;
};
// `server`: the parameter server's lanes.
[[nodiscard]] AtpInstallation installation_for(const session::StartJob& start, std::uint32_t switch_id,
                                               const AtpSettings& settings, const session::SwitchEndpoint& endpoint,
                                               std::span<const Endpoint> server, bool again = false);
[[nodiscard]] std::string check(const AtpInstallation& installation);
[[nodiscard]] session::SwitchMessage message_of(const AtpInstallation& installation);
// Throws Error: refused.
[[nodiscard]] AtpInstallation read_installation(const session::SwitchMessage& message);
[[nodiscard]] std::vector<session::Destination> destinations(const AtpInstallation& installation);

// At that switch, beside its pool.
[[nodiscard]] std::uint64_t memory_bytes(const AtpInstallation& installation);
// One lane of that switch; `installation` has passed check().
[[nodiscard]] atp::SwitchJobConfig switch_job(const AtpInstallation& installation, std::size_t lane);

// ---- configurations

[[nodiscard]] atp::Topology topology_of(const session::Placement& placement);

// One lane of the parameter server.
[[nodiscard]] atp::ServerJobConfig server_job(const session::StartJob& start, std::size_t lane, const AtpSettings& settings,
                                              const session::SwitchEndpoint& endpoint);

// Whom a lane of the parameter server has keys with: its ranks, which may bypass their switches, and the switches next to
// it.
[[nodiscard]] std::vector<seal::Neighbour> server_neighbours(const session::StartJob& start, std::size_t lane,
                                                             const session::SwitchEndpoint& endpoint);
// A lane of a switch.
[[nodiscard]] std::vector<seal::Neighbour> switch_neighbours(const AtpInstallation::Lane& lane);
// A lane of a rank.
[[nodiscard]] atp::LaneKeys lane_keys(const session::Admission& admission, std::size_t lane, const Endpoint& server,
                                      const Endpoint& first_hop);
// One lane of a rank, except `lane`, `lanes`, and the rank's own choices.
[[nodiscard]] atp::WorkerConfig worker_config(const session::Admission& admission, std::uint32_t rank,
                                              const Endpoint& server, const Endpoint& first_hop);

}  // namespace netsum::jobs
