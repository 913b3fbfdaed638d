// NetReduce's jobs: the rules of their admission, with what is NetReduce's own in it, and the configuration of accelerators
// and ranks: one ring per lane.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs/public_keys.h"
#include "jobs/tree.h"
#include "protocol/netreduce/member.h"
#include "protocol/netreduce/racks.h"
#include "protocol/netreduce/roce_host.h"
#include "protocol/netreduce/tunnel.h"
#include "protocol/netreduce/worker_lane.h"
#include "seal/hops.h"
#include "session/job_view.h"
#include "session/protocol_rules.h"

namespace netsum::jobs {

// ---- NetReduce's own

// What a rank asks for.
struct RingAsk {
  std::uint32_t message_packets = 0;       // 0: of a length that suits the window
  std::vector<netreduce::Member> members;  // its queue pairs, one per lane
  PrivateAsk privacy{};
  std::uint32_t most_messages = 0;  // of the window that the rank's memory holds, which a device knows before; 0: any
};
// What its job is granted.
struct RingGrant {
  std::uint32_t message_packets = 0;
  std::vector<std::vector<netreduce::Member>> members;  // [rank][lane], around the ring from `first` on
  std::vector<std::string> public_keys{};               // by rank; none: sums are not private
  std::uint32_t first = 0;  // a rank's share is it between its neighbours; of up to 3 ranks it has all
};
[[nodiscard]] session::OwnPart own_part(const RingAsk& ask);
[[nodiscard]] session::OwnPart own_part(const RingGrant& grant);
[[nodiscard]] RingGrant ring_grant(const session::Admission& admission);  // that was checked
[[nodiscard]] inline std::vector<seal::PublicKey> public_keys(const RingGrant& grant) {
  return keys_of(grant.public_keys);
}

[[nodiscard]] session::ProtocolRules netreduce_rules();
// The length of a message whose window is not measured.
[[nodiscard]] std::uint32_t longest_message(std::uint32_t packet_elements);
// A window of `count` messages.
struct Messages {
  std::uint32_t packets = 0;  // of each
  std::uint32_t count = 0;
};
// How a window of `packets` is made of messages of `asked` packets; 0: of a length that suits the window, and the longest if
// `packets` is 0 too.
[[nodiscard]] Messages messages_of(std::uint32_t packets, std::uint32_t asked, std::uint32_t packet_elements);

// N x MsgLen x pktSize >= RTT x PortRate (§3.2): the packets of a window that keeps a port busy.
[[nodiscard]] std::uint32_t packets_in_flight(std::uint64_t bits_per_second, Duration round_trip,
                                              std::uint32_t packet_bytes);

// ---- configurations

// A ring's RingID is its lane: rings of different jobs differ in connections and incarnations. An incarnation combines a
// job's epoch and a lane.
[[nodiscard]] std::uint64_t incarnation_of(std::uint64_t job_epoch, std::size_t lane);

// One lane of a switch in the job's tree with ranks below it; netreduce::at_root: of the aggregator where they join.
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const session::StartJob& start, std::size_t lane, std::uint32_t switch_id,
                                                const session::SwitchEndpoint& endpoint,
                                                netreduce::Order order = netreduce::Order::ring);
// For a job with a single switch.
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const session::StartJob& start, std::size_t lane,
                                                netreduce::Order order = netreduce::Order::ring);

// Throws Error: refused.
[[nodiscard]] TreeInstallation read_ring(const session::SwitchMessage& message, const session::ProtocolRules& rules);
// One lane of that switch; `installation` has passed check().
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const TreeInstallation& installation, std::size_t lane,
                                                netreduce::Order order = netreduce::Order::ring);
// For all lanes of that switch.
[[nodiscard]] std::uint64_t memory_bytes(const TreeInstallation& installation);

// Whom a lane of a switch in the job's tree has keys with; netreduce::at_root: of the aggregator where the ranks join.
[[nodiscard]] std::vector<seal::Neighbour> ring_neighbours(const session::StartJob& start, std::size_t lane,
                                                           std::uint32_t switch_id, const session::SwitchEndpoint& endpoint);
[[nodiscard]] std::vector<seal::Neighbour> ring_neighbours(const TreeInstallation& installation, std::size_t lane);
// A lane of a rank.
[[nodiscard]] netreduce::LaneKeys ring_keys(const session::Admission& admission, std::size_t lane);
// A job at a bump in the wire of its hosts: one ring, of RDMA hardware, which goes back. `racks`: hosts may be behind other
// bumps, which ranks name as their switches.
[[nodiscard]] session::ProtocolRules bump_rules(bool racks);
// At the bump where the ranks join; `endpoint`: where the other bumps receive.
[[nodiscard]] netreduce::TunnelRing bump_ring(const session::StartJob& start, const session::SwitchEndpoint& endpoint,
                                              netreduce::Order order = netreduce::Order::ring);
// At a bump below; `installation` has passed check().
[[nodiscard]] netreduce::TunnelRing bump_ring(const TreeInstallation& installation,
                                              netreduce::Order order = netreduce::Order::ring);

// What the accelerator sees of a lane of the job.
[[nodiscard]] session::JobView view_of(const netreduce::Accelerator& accelerator, std::uint64_t job_epoch, std::size_t lane);

[[nodiscard]] constexpr std::uint32_t successor_of(std::uint32_t rank, std::uint32_t world_size) {
  return (rank + 1) % world_size;
}
[[nodiscard]] constexpr std::uint32_t predecessor_of(std::uint32_t rank, std::uint32_t world_size) {
  return (rank + world_size - 1) % world_size;
}

// One lane of a rank, except `accelerator`, `worker.lane` and `worker.lanes`.
[[nodiscard]] netreduce::RoceHostConfig host_config(const session::Admission& admission, const RingGrant& grant,
                                                    std::uint32_t rank, std::size_t lane);

}  // namespace netsum::jobs
