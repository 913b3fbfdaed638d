// RoCEv2 packets: InfiniBand's transport headers in UDP (InfiniBand Architecture Specification, Annex A17), from the IP
// header to the invariant CRC. ethernet.h has the headers before that (Ethernet, VLAN tags).
//
// All numbers on this wire are big-endian except the ICRC.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/crc32.h"
#include "wire/parse_error.h"

namespace netsum::wire::roce {

inline constexpr std::uint16_t udp_port = 4791;
inline constexpr std::size_t ipv4_bytes = 20, ipv6_bytes = 40, udp_bytes = 8, bth_bytes = 12, reth_bytes = 16,
                             aeth_bytes = 4, immediate_bytes = 4, icrc_bytes = 4;
inline constexpr std::uint32_t max_mtu = 4096;  // path MTUs are 256, 512, 1024, 2048 and 4096
[[nodiscard]] constexpr bool is_path_mtu(std::uint32_t bytes) {
  return std::has_single_bit(bytes) && bytes >= 256 && bytes <= max_mtu;
}
// The payload of packets that travel in datagrams of their own, between netsum's endpoints alone: also multiples of the
// largest path MTU, as far as IP takes them.
inline constexpr std::uint32_t max_tunnel_mtu = 15 * max_mtu;
[[nodiscard]] constexpr bool is_tunnel_mtu(std::uint32_t bytes) {
  return is_path_mtu(bytes) || (bytes != 0 && bytes % max_mtu == 0 && bytes <= max_tunnel_mtu);
}
inline constexpr std::uint32_t qp_mask = 0xffffff;

// Packet sequence numbers: 24 bits that start anywhere and wrap.
inline constexpr std::uint32_t psn_mask = 0xffffff;
// b - a in sequence order, -2^23 ... 2^23 - 1.
[[nodiscard]] constexpr std::int32_t psn_distance(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>((b - a) << 8) >> 8;
}

// Lower five bits: the operation; upper three: the service, 0 RC, 1 UC.
enum class Opcode : std::uint8_t {
  rc_send_first = 0x00,
  rc_send_middle = 0x01,
  rc_send_last = 0x02,
  rc_send_last_immediate = 0x03,
  rc_send_only = 0x04,
  rc_send_only_immediate = 0x05,
  rc_write_first = 0x06,
  rc_write_middle = 0x07,
  rc_write_last = 0x08,
  rc_write_last_immediate = 0x09,
  rc_write_only = 0x0a,
  rc_write_only_immediate = 0x0b,
  rc_read_request = 0x0c,
  rc_read_response_first = 0x0d,
  rc_read_response_middle = 0x0e,
  rc_read_response_last = 0x0f,
  rc_read_response_only = 0x10,
  rc_acknowledge = 0x11,
  uc_send_first = 0x20,
  uc_send_middle = 0x21,
  uc_send_last = 0x22,
  uc_send_last_immediate = 0x23,
  uc_send_only = 0x24,
  uc_send_only_immediate = 0x25,
  uc_write_first = 0x26,
  uc_write_middle = 0x27,
  uc_write_last = 0x28,
  uc_write_last_immediate = 0x29,
  uc_write_only = 0x2a,
  uc_write_only_immediate = 0x2b,
  congestion_notification = 0x81,
};

// Properties of an opcode's packets, and the headers between BTH and payload, in this order.
struct Shape {
  bool known = false;                // of the opcodes above
  bool reliable = false;             // RC
  bool request = false;              // SEND or WRITE
  bool write = false;                // of a WRITE
  bool first = false, last = false;  // of a message; ONLY is both
  bool reth = false, aeth = false, immediate = false;
  bool payload = false;  // may have payload
};
[[nodiscard]] Shape shape_of(Opcode opcode);

struct Ip {
  bool v6 = false;
  std::array<std::uint8_t, 16> source{}, destination{};  // IPv4 as IPv4-mapped IPv6, as Endpoint has them
  std::uint8_t traffic_class = 0;                        // IPv4: type of service
  std::uint8_t hop_limit = 64;                           // IPv4: time to live
  std::uint16_t identification = 0;                      // IPv4
  std::uint16_t fragment = 0x4000;                       // IPv4: flags and offset; don't fragment
  std::uint32_t flow_label = 0;                          // IPv6
  bool operator==(const Ip&) const = default;
};

struct Bth {
  Opcode opcode{};
  bool solicited = false, migration = false, fecn = false, becn = false, ack_request = false;
  std::uint8_t pad = 0;      // bytes after the payload: 0 ... 3
  std::uint8_t version = 0;  // 4 bits
  std::uint16_t partition_key = 0xffff;
  std::uint8_t reserved6 = 0, reserved7 = 0;  // beside fecn and becn, and beside ack_request
  std::uint32_t destination_qp = 0, psn = 0;
  bool operator==(const Bth&) const = default;
};

struct Reth {
  std::uint64_t address = 0;
  std::uint32_t key = 0, length = 0;  // of the whole message, bytes
  bool operator==(const Reth&) const = default;
};

// Syndromes: ACK 0x00 + credits (0x1f: not counted), RNR NAK 0x20 + timer, NAK 0x60 + code.
struct Aeth {
  static constexpr std::uint8_t ack = 0x1f, rnr_nak = 0x20, nak_sequence = 0x60, nak_invalid = 0x61, nak_access = 0x62,
                                nak_operational = 0x63;
  // netsum's, with reserved NAK codes: `msn` packets from the PSN on are missing, or are still missing. They acknowledge
  // nothing.
  static constexpr std::uint8_t repeat_request = 0x7e, repeat_again = 0x7f;
  [[nodiscard]] bool asks_for_repeats() const { return syndrome == repeat_request || syndrome == repeat_again; }
  [[nodiscard]] bool says_what_is_missing() const { return syndrome == nak_sequence || asks_for_repeats(); }
  static constexpr std::uint8_t kind_mask = 0x60;  // 0x00 ACK, 0x20 RNR NAK, 0x60 NAK
  std::uint8_t syndrome = ack;
  std::uint32_t msn = 0;  // completed messages, 24 bits
  bool operator==(const Aeth&) const = default;
};

// What a congestion notification (CNP) has behind its BTH: reserved, and zero.
inline constexpr std::array<std::byte, 16> notification_payload{};

// One packet. Headers that its opcode lacks are default-constructed.
struct Packet {
  Ip ip;
  std::uint16_t source_port = 0;
  std::uint16_t udp_checksum = 0;  // 0: none. As read; write() computes it if this is not 0
  Bth bth;
  Reth reth;
  Aeth aeth;
  std::uint32_t immediate = 0;
  std::span<const std::byte> payload;  // without pad
};

// IPv4 if both addresses are, which are in Endpoint's format.
void set_addresses(Packet& packet, const std::array<std::uint8_t, 16>& source,
                   const std::array<std::uint8_t, 16>& destination);

// Whether bytes from the IP header on are UDP to port 4791 and no fragment. Other packets are not ours.
[[nodiscard]] bool is_roce(std::span<const std::byte> ip_packet);

// The connection of a packet that begins with these bytes, or of a train or a fragment, however little else is readable.
// `payload_at`: where in the UDP payload the packet's BTH begins; each packet of a train has one.
struct Glance {
  std::array<std::uint8_t, 16> source{}, destination{};
  std::uint32_t destination_qp = 0;
  std::span<const std::byte> beginning;  // if its opcode begins a message: the message's beginning, and all after it
};
[[nodiscard]] std::optional<Glance> glance(std::span<const std::byte> ip_packet, std::size_t payload_at = 0);

// Reads a packet whose bytes begin with the IP header; ignores bytes beyond the IP header's length (Ethernet pads short
// frames). Checks lengths, versions, the IPv4 header's checksum and the pad count, but neither the UDP checksum nor the
// ICRC. IPv4 options, IPv6 extension headers, opcodes not listed above and more payload than `longest` are errors.
[[nodiscard]] ParseError parse(std::span<const std::byte> ip_packet, Packet& out, std::uint32_t longest = max_mtu);

// A parsed packet's length by its IP header: from the IP header to the end of the ICRC.
[[nodiscard]] std::size_t packet_bytes(std::span<const std::byte> ip_packet);
// The length of a packet to be written, from bth.opcode, ip.v6 and payload.size().
[[nodiscard]] std::size_t packet_bytes(const Packet& packet);
// Where the payload of a parsed packet begins.
[[nodiscard]] std::size_t payload_offset(const Packet& packet);

// The ICRC: CRC-32 over the packet, with all fields that routers may change set to ones.
[[nodiscard]] std::uint32_t icrc_of(std::span<const std::byte> ip_packet);  // exactly packet_bytes()
[[nodiscard]] bool icrc_valid(std::span<const std::byte> ip_packet);        // exactly packet_bytes()
void write_icrc(std::span<std::byte> ip_packet);                            // exactly packet_bytes()

// Writes a whole packet, ICRC included; `out` has packet_bytes(packet), and packet.payload may already be in place there.
// Computes bth.pad.
void write(std::span<std::byte> out, const Packet& packet);
// The same around packet.payload, wherever that is: `head` has payload_offset(packet) bytes, `tail` what follows the
// payload. Without a UDP checksum.
void write_around(std::span<std::byte> head, std::span<std::byte> tail, const Packet& packet);

// Renews the UDP checksum, if there is one, and the ICRC after a change to the payload.
void write_checksums(std::span<std::byte> ip_packet);  // exactly packet_bytes()

// The common part of packets that differ only in their headers: the last bytes before the ICRC.
struct CommonEnd {
  std::size_t bytes = 0;
  std::uint32_t crc = 0;  // crc32 of them
  Crc32Shift shift{0};    // by `bytes`
};
void write_checksums(std::span<std::byte> ip_packet, const CommonEnd& end);
// `before`: an IP packet without a UDP checksum, up to the common end.
[[nodiscard]] std::uint32_t icrc_of(std::span<const std::byte> before, const CommonEnd& end);
[[nodiscard]] bool has_udp_checksum(std::span<const std::byte> ip_packet);

}  // namespace netsum::wire::roce
