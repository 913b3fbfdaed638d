// Ethernet frames of simulated hosts at a bump's ports, as ports give them (transport/ports/port.h): behind a
// VirtioNetHeader.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "protocol/netreduce/connection.h"
#include "sim/random.h"
#include "wire/ethernet.h"
#include "wire/roce.h"

namespace netsum::sim {

using Frame = std::vector<std::byte>;

// Of the host with this IPv4 address.
[[nodiscard]] wire::ethernet::Address mac_of(const netreduce::HostAddress& address);

// A RoCEv2 packet of a host, to the host of its destination address.
[[nodiscard]] Frame framed(std::span<const std::byte> ip_packet);
// No effect on what is shorter than its header.
void set_source(std::span<std::byte> frame, const wire::ethernet::Address& source);

// A frame that has nothing to do with gradients: ARP, TCP and its trains, tagged UDP, IPv6 multicast, RoCE of other queue
// pairs and services, readable or not.
[[nodiscard]] Frame foreign_frame(const netreduce::HostAddress& from, const netreduce::HostAddress& to, Random& random);

// A frame's packet of a ring, if it can be read: rings' queue pair numbers contain ports, foreign ones are smaller.
struct RingPacket {
  std::span<const std::byte> ip;  // exactly
  wire::roce::Packet packet;
  wire::roce::Shape shape;

  [[nodiscard]] netreduce::Connection connection() const {
    return {packet.ip.source, packet.ip.destination, packet.bth.destination_qp};
  }
};
[[nodiscard]] std::optional<RingPacket> ring_packet(std::span<const std::byte> frame);

}  // namespace netsum::sim
