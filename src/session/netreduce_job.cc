#include "session/netreduce_job.h"

#include <bit>

#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::session {
namespace {

constexpr std::uint32_t least_mtu = 256;

// A path MTU in elements of 4 bytes.
constexpr std::uint32_t mtu_of(std::uint32_t packet_elements) {
  return packet_elements * 4;
}

}  // namespace

ProtocolRules netreduce_rules() {
  ProtocolRules rules;
  rules.name = "netreduce";
  rules.version = wire::netreduce::version;
  rules.max_world_size = wire::netreduce::max_workers;
  rules.check_packet = [](std::uint32_t elements) -> std::string {
    if (std::has_single_bit(elements) && elements >= least_mtu / 4 && elements <= wire::roce::max_mtu / 4) return "";
    return "packets of " + std::to_string(elements) +
           " elements are not possible: 64, 128, 256, 512 or 1024, which are RoCE's path MTUs of 256 to 4096 bytes";
  };
  rules.check_placement = [](const Placement&) { return std::string(); };
  rules.check_request = [](const JoinRequest& request) -> std::string {
    if (request.members.size() != request.endpoints.size()) return "the rank does not name its queue pairs";
    netreduce::RingConfig ring;
    ring.members = request.world_size;
    ring.window = std::max(1U, request.slots_fixed);
    ring.message_packets = request.message_packets;
    ring.mtu = mtu_of(request.packet_elements);
    return netreduce::check(ring);
  };
  rules.units = [](const JoinRequest& request) {
    return units_of_packet(request) * request.message_packets * request.world_size;
  };
  return rules;
}

std::uint64_t incarnation_of(std::uint64_t job_epoch, std::size_t lane) {
  return job_epoch + lane * 0x9e3779b97f4a7c15U;
}

netreduce::TunnelRing tunnel_ring(const StartJob& start, std::size_t lane, netreduce::Order order) {
  const Admission& admission = start.admission;
  netreduce::TunnelRing tunnel;
  tunnel.ring.incarnation = incarnation_of(admission.job_epoch, lane);
  tunnel.ring.ring = static_cast<std::uint32_t>(lane);
  tunnel.ring.members = static_cast<std::uint32_t>(admission.members.size());
  tunnel.ring.window = admission.slots;
  tunnel.ring.message_packets = admission.message_packets;
  tunnel.ring.mtu = mtu_of(admission.packet_elements);
  tunnel.ring.order = order;
  for (std::size_t rank = 0; rank < admission.members.size(); ++rank) {
    tunnel.members.push_back(admission.members[rank][lane]);
    tunnel.endpoints.push_back(start.endpoints[rank][lane]);
  }
  return tunnel;
}

netreduce::RoceHostConfig host_config(const Admission& admission, std::uint32_t rank, std::size_t lane) {
  const std::size_t ranks = admission.members.size();
  netreduce::RoceHostConfig config;
  config.worker.incarnation = incarnation_of(admission.job_epoch, lane);
  config.worker.ring = static_cast<std::uint32_t>(lane);
  config.worker.rank = rank;
  config.worker.world_size = static_cast<std::uint32_t>(ranks);
  config.worker.window = admission.slots;
  config.worker.message_packets = admission.message_packets;
  config.worker.mtu = mtu_of(admission.packet_elements);
  config.self = admission.members[rank][lane];
  config.successor = admission.members[successor_of(rank, config.worker.world_size)][lane];
  config.predecessor = admission.members[predecessor_of(rank, config.worker.world_size)][lane];
  return config;
}

}  // namespace netsum::session
