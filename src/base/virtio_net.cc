#include "base/virtio_net.h"

#include "base/bytes.h"

namespace netsum {
namespace {

// The sum of 16-bit words that IP, TCP and UDP use (RFC 1071), in the host's byte order: loads and stores only have to
// agree. A last odd byte counts as if a zero followed.
std::uint16_t ones_complement_sum(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 4; at += 4, left -= 4) sum += load_le<std::uint32_t>(at);
  if (left >= 2) {
    sum += load_le<std::uint16_t>(at);
    at += 2;
    left -= 2;
  }
  if (left > 0) sum += std::to_integer<std::uint64_t>(*at);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

}  // namespace

VirtioNetHeader read_virtio_net_header(std::span<const std::byte> from) {
  VirtioNetHeader header;
  header.flags = std::to_integer<std::uint8_t>(from[0]);
  header.gso_type = std::to_integer<std::uint8_t>(from[1]);
  header.hdr_len = load_le<std::uint16_t>(&from[2]);
  header.gso_size = load_le<std::uint16_t>(&from[4]);
  header.csum_start = load_le<std::uint16_t>(&from[6]);
  header.csum_offset = load_le<std::uint16_t>(&from[8]);
  return header;
}

void write_virtio_net_header(std::span<std::byte> to, const VirtioNetHeader& header) {
  to[0] = std::byte{header.flags};
  to[1] = std::byte{header.gso_type};
  store_le(&to[2], header.hdr_len);
  store_le(&to[4], header.gso_size);
  store_le(&to[6], header.csum_start);
  store_le(&to[8], header.csum_offset);
}

bool complete_checksum(std::span<std::byte> frame) {
  if (frame.size() < virtio_net_header_bytes) return false;
  VirtioNetHeader header = read_virtio_net_header(frame);
  if ((header.flags & VirtioNetHeader::needs_checksum) == 0) return true;
  const std::span<std::byte> packet = frame.subspan(virtio_net_header_bytes);
  const std::size_t place = std::size_t{header.csum_start} + header.csum_offset;
  if (header.gso_type != VirtioNetHeader::gso_none || place + sizeof(std::uint16_t) > packet.size()) return false;
  auto checksum = static_cast<std::uint16_t>(~ones_complement_sum(packet.subspan(header.csum_start)));
  if (checksum == 0) checksum = 0xffff;  // the same number; in UDP, 0 means no checksum
  store_le(&packet[place], checksum);
  header.flags = VirtioNetHeader::data_valid;
  header.csum_start = header.csum_offset = 0;
  write_virtio_net_header(frame, header);
  return true;
}

}  // namespace netsum
