#include "sim/frames.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "base/virtio_net.h"

namespace netsum::sim {
namespace {

using wire::ethernet::Address;
using wire::roce::Opcode;

constexpr std::size_t at_ethernet = virtio_net_header_bytes, at_ip = at_ethernet + wire::ethernet::header_bytes;
constexpr std::size_t mac_bytes = 6, at_destination = 16;  // the latter in an IPv4 header
constexpr std::uint32_t foreign_qps = 0x1000;              // below: not of rings
constexpr std::uint16_t arp = 0x0806;

void append(Frame& frame, Random& random, std::size_t bytes) {
  for (; bytes > 0; --bytes) frame.push_back(static_cast<std::byte>(random.next()));
}

Frame headed(const Address& to, const Address& from, std::uint16_t type, std::uint16_t tag = 0) {
  Frame frame(virtio_net_header_bytes);
  write_virtio_net_header(frame, {});
  for (const Address& address : {to, from}) {
    for (const std::uint8_t byte : address) frame.push_back(std::byte{byte});
  }
  const auto append_be16 = [&](std::uint16_t value) {
    frame.push_back(static_cast<std::byte>(value >> 8));
    frame.push_back(static_cast<std::byte>(value & 0xff));
  };
  if (tag != 0) {
    append_be16(wire::ethernet::vlan);
    append_be16(tag);
  }
  append_be16(type);
  return frame;
}

// Its checksum is wrong, and nobody on the way has to look.
void append_ipv4(Frame& frame, std::uint8_t protocol, const netreduce::HostAddress& from, const netreduce::HostAddress& to,
                 std::size_t payload) {
  std::array<std::byte, wire::roce::ipv4_bytes> ip{};
  ip[0] = std::byte{0x45};
  store_be(&ip[2], static_cast<std::uint16_t>(ip.size() + payload));
  ip[8] = std::byte{64};
  ip[9] = std::byte{protocol};
  for (std::size_t i = 0; i < 4; ++i) {
    ip[12 + i] = std::byte{from[12 + i]};
    ip[at_destination + i] = std::byte{to[12 + i]};
  }
  frame.insert(frame.end(), ip.begin(), ip.end());
}

Frame other_roce(const netreduce::HostAddress& from, const netreduce::HostAddress& to, Random& random) {
  constexpr Opcode opcodes[] = {Opcode::rc_send_first,   Opcode::rc_send_middle, Opcode::rc_send_only,
                                Opcode::rc_write_first,  Opcode::rc_write_only,  Opcode::rc_write_last_immediate,
                                Opcode::rc_read_request, Opcode::rc_acknowledge, Opcode::rc_read_response_only,
                                Opcode::uc_write_only,   Opcode::uc_send_only,   Opcode::congestion_notification};
  wire::roce::Packet packet;
  wire::roce::set_addresses(packet, from, to);
  packet.bth.opcode = random.pick(opcodes);
  packet.bth.destination_qp = static_cast<std::uint32_t>(random.below(foreign_qps));
  packet.bth.psn = static_cast<std::uint32_t>(random.next()) & wire::roce::psn_mask;
  std::vector<std::byte> payload;
  if (wire::roce::shape_of(packet.bth.opcode).payload) append(payload, random, 4 * random.below(64));
  packet.payload = payload;
  std::vector<std::byte> ip(wire::roce::packet_bytes(packet));
  wire::roce::write(ip, packet);
  if (random.chance(0.2)) ip.back() ^= std::byte{1};  // that is for its receiver to judge
  Frame frame = framed(ip);
  if (random.chance(0.2)) {  // unsegmented
    VirtioNetHeader header;
    header.gso_type = VirtioNetHeader::gso_udp_l4;
    header.gso_size = static_cast<std::uint16_t>(ip.size() - wire::roce::ipv4_bytes - wire::roce::udp_bytes);
    write_virtio_net_header(frame, header);
  } else if (random.chance(0.2)) {  // behind the queue pair number
    frame.resize(at_ip + wire::roce::ipv4_bytes + wire::roce::udp_bytes + random.between(8, wire::roce::bth_bytes));
  }
  return frame;
}

}  // namespace

Address mac_of(const netreduce::HostAddress& address) {
  return {2, 0, address[12], address[13], address[14], address[15]};
}

Frame framed(std::span<const std::byte> ip_packet) {
  netreduce::HostAddress from{}, to{};
  for (std::size_t i = 12; i < to.size(); ++i) {
    from[i] = std::to_integer<std::uint8_t>(ip_packet[i]);
    to[i] = std::to_integer<std::uint8_t>(ip_packet[i + 4]);
  }
  Frame frame = headed(mac_of(to), mac_of(from), wire::ethernet::ipv4);
  frame.insert(frame.end(), ip_packet.begin(), ip_packet.end());
  return frame;
}

void set_source(std::span<std::byte> frame, const Address& source) {
  if (frame.size() < at_ip) return;
  std::transform(source.begin(), source.end(), frame.begin() + at_ethernet + mac_bytes,
                 [](std::uint8_t byte) { return std::byte{byte}; });
}

Frame foreign_frame(const netreduce::HostAddress& from, const netreduce::HostAddress& to, Random& random) {
  constexpr std::uint8_t tcp = 6, udp = 17;
  constexpr std::size_t tcp_bytes = 20, at_tcp_checksum = 16;
  Frame frame;
  switch (random.below(8)) {
    case 0:
      frame = headed({0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac_of(from), arp);
      append(frame, random, 28);
      return frame;
    case 1:
      frame = headed({0x33, 0x33, 0, 0, 0, 1}, mac_of(from), wire::ethernet::ipv6);
      append(frame, random, random.between(40, 200));
      frame[at_ip] = std::byte{0x60};
      frame[at_ip + 6] = std::byte{58};  // ICMP
      return frame;
    case 2: {  // to nobody whom the bridge knows
      frame = headed({2, 0xff, 0, 0, 0, static_cast<std::uint8_t>(random.next())}, mac_of(from), wire::ethernet::ipv4);
      append_ipv4(frame, tcp, from, to, tcp_bytes);
      append(frame, random, tcp_bytes);
      return frame;
    }
    case 3: {
      const std::size_t bytes = wire::roce::udp_bytes + random.below(300);
      frame = headed(mac_of(to), mac_of(from), wire::ethernet::ipv4, static_cast<std::uint16_t>(random.between(1, 9)));
      append_ipv4(frame, udp, from, to, bytes);
      append(frame, random, bytes);
      store_be(&frame[at_ip + wire::ethernet::tag_bytes + wire::roce::ipv4_bytes + 2], std::uint16_t{53});
      return frame;
    }
    case 4:
    case 5: {
      const bool train = random.chance(0.5);
      const std::size_t bytes = tcp_bytes + random.below(train ? 6000 : 1400);
      frame = headed(mac_of(to), mac_of(from), wire::ethernet::ipv4);
      append_ipv4(frame, tcp, from, to, bytes);
      append(frame, random, bytes);
      if (!train) return frame;
      VirtioNetHeader header;
      header.flags = VirtioNetHeader::needs_checksum;
      header.gso_type = VirtioNetHeader::gso_tcpv4;
      header.gso_size = 1448;
      header.csum_start = wire::ethernet::header_bytes + wire::roce::ipv4_bytes;
      header.csum_offset = at_tcp_checksum;
      header.hdr_len = static_cast<std::uint16_t>(header.csum_start + tcp_bytes);
      write_virtio_net_header(frame, header);
      return frame;
    }
    default:
      return other_roce(from, to, random);
  }
}

std::optional<RingPacket> ring_packet(std::span<const std::byte> frame) {
  if (frame.size() < at_ip) return std::nullopt;
  const auto ethernet = wire::ethernet::parse(frame.subspan(at_ethernet));
  if (!ethernet || ethernet->type != wire::ethernet::ipv4) return std::nullopt;
  RingPacket found;
  found.ip = frame.subspan(at_ethernet + ethernet->bytes);
  if (!wire::roce::is_roce(found.ip) || wire::roce::parse(found.ip, found.packet) != wire::ParseError::none)
    return std::nullopt;
  if (found.packet.bth.destination_qp < foreign_qps) return std::nullopt;
  found.ip = found.ip.first(wire::roce::packet_bytes(found.ip));
  found.shape = wire::roce::shape_of(found.packet.bth.opcode);
  return found;
}

}  // namespace netsum::sim
