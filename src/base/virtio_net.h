// Linux's description of an Ethernet frame whose checksum or segmentation is left to the next device: virtio's
// struct virtio_net_hdr (OASIS virtio 1.2, 5.1.6), without num_buffers. It precedes every frame that a port
// (transport/ports/port.h) hands out or takes, and travels with the frame. A host behind a veth or a virtual card leaves
// both undone by default, so a wire that loses this header breaks all TCP of that host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum {

inline constexpr std::size_t virtio_net_header_bytes = 10;

struct VirtioNetHeader {
  static constexpr std::uint8_t needs_checksum = 1, data_valid = 2;  // flags
  static constexpr std::uint8_t gso_none = 0, gso_tcpv4 = 1, gso_udp = 3, gso_tcpv6 = 4, gso_udp_l4 = 5, gso_ecn = 0x80;

  std::uint8_t flags = 0;
  std::uint8_t gso_type = gso_none;  // else: a train, to be cut into segments; it holds their common headers once
  std::uint16_t hdr_len = 0;         // length of those headers, Ethernet's included; a hint
  std::uint16_t gso_size = 0;        // payload of each segment
  // With needs_checksum: the checksum over all bytes from csum_start on belongs at csum_start + csum_offset, where the sum
  // of the pseudo header is now. csum_start counts from the Ethernet header.
  std::uint16_t csum_start = 0, csum_offset = 0;

  bool operator==(const VirtioNetHeader&) const = default;
};

// `from` and `to` have at least virtio_net_header_bytes.
[[nodiscard]] VirtioNetHeader read_virtio_net_header(std::span<const std::byte> from);
void write_virtio_net_header(std::span<std::byte> to, const VirtioNetHeader& header);

// `frame` begins with its header. Computes the frame's checksum if it needs one. False, and nothing changed: the checksum's
// place is outside the frame, or this is a train, whose segments need one each.
[[nodiscard]] bool complete_checksum(std::span<std::byte> frame);

}  // namespace netsum
