// What Linux says of an Ethernet frame whose checksum or segmentation it left to whoever takes it next: virtio's
// struct virtio_net_hdr (OASIS virtio 1.2, 5.1.6), without num_buffers. It is in front of every frame that a port
// (transport/port.h) hands out or takes, and travels with it: a host behind a veth or a virtual card leaves both undone by
// default, so that a wire that loses this header breaks all of that host's TCP.
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
  std::uint8_t gso_type = gso_none;  // else: a train, to be cut into segments, of which it holds the common headers once
  std::uint16_t hdr_len = 0;         // of those headers, Ethernet's included; a hint
  std::uint16_t gso_size = 0;        // of each segment behind its headers
  // With needs_checksum: that over all bytes from csum_start on is to be put csum_offset behind it, where the sum of the
  // pseudo header is now. From the Ethernet header on.
  std::uint16_t csum_start = 0, csum_offset = 0;

  bool operator==(const VirtioNetHeader&) const = default;
};

// `from` and `to` have virtio_net_header_bytes or more.
[[nodiscard]] VirtioNetHeader read_virtio_net_header(std::span<const std::byte> from);
void write_virtio_net_header(std::span<std::byte> to, const VirtioNetHeader& header);

// Of a frame with its header: computes the checksum that it needs, if it needs one. False, and nothing changed: its place is
// not inside the frame, or this is a train, whose segments need one each.
[[nodiscard]] bool complete_checksum(std::span<std::byte> frame);

}  // namespace netsum
