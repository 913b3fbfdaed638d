// From a NetReduce job's admission to what its accelerator and its ranks must know: one ring a lane.
#pragma once

#include <cstdint>

#include "protocol/netreduce/racks.h"
#include "protocol/netreduce/roce_host.h"
#include "protocol/netreduce/tunnel.h"
#include "session/protocol_rules.h"
#include "session/registry.h"

namespace netsum::session {

[[nodiscard]] ProtocolRules netreduce_rules();
// Of a message where nobody says.
[[nodiscard]] std::uint32_t default_message_packets(std::uint32_t packet_elements);

// The ring's RingID is its lane: rings of different jobs have different connections, and incarnations. An incarnation is a
// job's epoch and a lane.
[[nodiscard]] std::uint64_t incarnation_of(std::uint64_t job_epoch, std::size_t lane);

[[nodiscard]] netreduce::Tree tree_of(const Placement& placement, std::size_t ranks);

// One lane of a switch in the job's tree, which has ranks below; netreduce::at_root: of the aggregator where they join.
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane, std::uint32_t a_switch,
                                                const SwitchEndpoint& endpoint,
                                                netreduce::Order order = netreduce::Order::ring);
// Of a job that has one switch alone.
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane,
                                                netreduce::Order order = netreduce::Order::ring);

// What a switch below the aggregator is told of a job.
struct RingInstallation {
  StartJob start;
  std::uint32_t a_switch = 0;
  bool again = false;                           // it has been told before: if it knows nothing of the job, it lost the sums
  std::vector<std::vector<Endpoint>> switches;  // [switch][lane]
  std::vector<Endpoint> root;                   // [lane]
};
// One lane of that switch, of what check() has nothing against.
[[nodiscard]] netreduce::TunnelRing tunnel_ring(const RingInstallation& installation, std::size_t lane);
// What all lanes of that switch take.
[[nodiscard]] std::uint64_t memory_bytes(const RingInstallation& installation);

[[nodiscard]] constexpr std::uint32_t successor_of(std::uint32_t rank, std::uint32_t world_size) {
  return (rank + 1) % world_size;
}
[[nodiscard]] constexpr std::uint32_t predecessor_of(std::uint32_t rank, std::uint32_t world_size) {
  return (rank + world_size - 1) % world_size;
}

// One lane of a rank: everything but `accelerator`, `worker.lane` and `worker.lanes`.
[[nodiscard]] netreduce::RoceHostConfig host_config(const Admission& admission, std::uint32_t rank, std::size_t lane);

}  // namespace netsum::session
