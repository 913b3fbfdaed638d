// From a NetReduce job's admission to the configuration of its accelerator and its ranks: one ring per lane.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/netreduce/racks.h"
#include "protocol/netreduce/roce_host.h"
#include "protocol/netreduce/tunnel.h"
#include "protocol/netreduce/worker_lane.h"
#include "seal/hops.h"
#include "session/job_view.h"
#include "session/protocol_rules.h"
#include "session/registry.h"

namespace netsum::session {

[[nodiscard]] ProtocolRules netreduce_rules();
// The length of a message whose window is not measured.
[[nodiscard]] std::uint32_t longest_message(std::uint32_t packet_elements);
// ProtocolRules::messages.
[[nodiscard]] Messages messages_of(std::uint32_t packets, std::uint32_t asked, std::uint32_t packet_elements);

// A ring's RingID is its lane: rings of different jobs differ in connections and incarnations. An incarnation combines a
// job's epoch and a lane.
[[nodiscard]] std::uint64_t incarnation_of(std::uint64_t job_epoch, std::size_t lane);

[[nodiscard]] netreduce::Tree tree_of(const Placement& placement, std::size_t ranks);

// One lane of a switch in the job's tree with ranks below it; netreduce::at_root: of the aggregator where they join.
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane, std::uint32_t a_switch,
                                                const SwitchEndpoint& endpoint,
                                                netreduce::Order order = netreduce::Order::ring);
// For a job with a single switch.
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane,
                                                netreduce::Order order = netreduce::Order::ring);

// A job, as a switch below the aggregator is told of it.
struct TreeInstallation {
  StartJob start;
  std::uint32_t a_switch = 0;
  bool again = false;                           // told before: if it does not know the job now, it has lost the sums
  std::vector<std::vector<Endpoint>> switches;  // [switch][lane]
  std::vector<Endpoint> root;                   // [lane]
};
// By a switch that does not know the job. Throws Error: refused, if it was told before.
void refuse_again(const TreeInstallation& installation);
// One lane of that switch; `installation` has passed check().
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const TreeInstallation& installation, std::size_t lane,
                                                netreduce::Order order = netreduce::Order::ring);
// For all lanes of that switch.
[[nodiscard]] std::uint64_t memory_bytes(const TreeInstallation& installation);

// Whom a lane of a switch in the job's tree has keys with; netreduce::at_root: of the aggregator where the ranks join.
[[nodiscard]] std::vector<seal::Neighbour> ring_neighbours(const StartJob& start, std::size_t lane, std::uint32_t a_switch,
                                                           const SwitchEndpoint& endpoint);
[[nodiscard]] std::vector<seal::Neighbour> ring_neighbours(const TreeInstallation& installation, std::size_t lane);
// A lane of a rank.
[[nodiscard]] netreduce::LaneKeys ring_keys(const Admission& admission, std::size_t lane);
// What the switch is told of the job: no keys but those of the results, of the ranks and switches next to it, and its own.
[[nodiscard]] StartJob for_switch(const StartJob& start, std::uint32_t a_switch);

// A job at a bump in the wire of its hosts: one ring, of RDMA hardware, which goes back. `racks`: hosts may be behind other
// bumps, which ranks name as their switches.
[[nodiscard]] ProtocolRules bump_rules(bool racks);
// At the bump where the ranks join; `endpoint`: where the other bumps receive.
[[nodiscard]] netreduce::TunnelRing bump_ring(const StartJob& start, const SwitchEndpoint& endpoint,
                                              netreduce::Order order = netreduce::Order::ring);
// At a bump below; `installation` has passed check().
[[nodiscard]] netreduce::TunnelRing bump_ring(const TreeInstallation& installation,
                                              netreduce::Order order = netreduce::Order::ring);

// What the accelerator sees of a lane of the job.
[[nodiscard]] JobView view_of(const netreduce::Accelerator& accelerator, std::uint64_t job_epoch, std::size_t lane);

[[nodiscard]] constexpr std::uint32_t successor_of(std::uint32_t rank, std::uint32_t world_size) {
  return (rank + 1) % world_size;
}
[[nodiscard]] constexpr std::uint32_t predecessor_of(std::uint32_t rank, std::uint32_t world_size) {
  return (rank + world_size - 1) % world_size;
}

// One lane of a rank, except `accelerator`, `worker.lane` and `worker.lanes`.
[[nodiscard]] netreduce::RoceHostConfig host_config(const Admission& admission, std::uint32_t rank, std::size_t lane);

}  // namespace netsum::session
