// RoCEv2 packets: InfiniBand's transport headers in UDP (InfiniBand Architecture Specification, Annex A17), from the IP
// header to the invariant CRC. What is in front of it (Ethernet, VLAN tags) is ethernet.h's.
//
// All numbers on this wire are big-endian, but the ICRC.
#pragma once

#include <array>
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
inline constexpr std::uint32_t qp_mask = 0xffffff;

// Packet sequence numbers: 24 bits that start anywhere and wrap.
inline constexpr std::uint32_t psn_mask = 0xffffff;
// b - a in sequence, -2^23 ... 2^23 - 1.
[[nodiscard]] constexpr std::int32_t psn_distance(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>((b - a) << 8) >> 8;
}

// The lower five bits say what it is, the upper three for which service: 0 RC, 1 UC.
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

// What packets of an opcode are, and what they carry between BTH and payload, in this order.
struct Shape {
  bool known = false;                // of the opcodes above
  bool reliable = false;             // RC
  bool request = false;              // SEND or WRITE
  bool write = false;                // of a WRITE
  bool first = false, last = false;  // of a message; ONLY is both
  bool reth = false, aeth = false, immediate = false;
  bool payload = false;  // may have any
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
  std::uint8_t pad = 0;      // bytes behind the payload: 0 ... 3
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
  static constexpr std::uint8_t kind_mask = 0x60;  // 0x00 ACK, 0x20 RNR NAK, 0x60 NAK
  std::uint8_t syndrome = ack;
  std::uint32_t msn = 0;  // messages that were completed, 24 bits
  bool operator==(const Aeth&) const = default;
};

// One packet. Headers that its opcode lacks are default-constructed.
struct Packet {
  Ip ip;
  std::uint16_t source_port = 0;
  std::uint16_t udp_checksum = 0;  // 0: none. As it was read; write() computes one where this is not 0
  Bth bth;
  Reth reth;
  Aeth aeth;
  std::uint32_t immediate = 0;
  std::span<const std::byte> payload;  // without pad
};

// Whether bytes from the IP header on are UDP to port 4791 and no fragment: everything else is none of our business.
[[nodiscard]] bool is_roce(std::span<const std::byte> ip_packet);

// Which connection's a packet is that begins with these bytes, or a train of such, or a fragment, however little else of it
// can be read. `payload_at`: where in the UDP payload the packet's BTH begins; in a train each has one.
struct Glance {
  std::array<std::uint8_t, 16> source{}, destination{};
  std::uint32_t destination_qp = 0;
  std::span<const std::byte> beginning;  // if its opcode says that it begins a message: of that, and what is behind
};
[[nodiscard]] std::optional<Glance> glance(std::span<const std::byte> ip_packet, std::size_t payload_at = 0);

// Reads a packet whose bytes begin with the IP header; what is behind the length that the IP header says (Ethernet pads
// short frames) is not looked at. Checks lengths, versions, the IPv4 header's checksum and the pad count; neither the UDP
// checksum nor the ICRC. IPv4 options, IPv6 extension headers and opcodes that are not listed above are errors.
[[nodiscard]] ParseError parse(std::span<const std::byte> ip_packet, Packet& out);

// The length that the IP header of a parsed packet says: from the IP header to the end of the ICRC.
[[nodiscard]] std::size_t packet_bytes(std::span<const std::byte> ip_packet);
// The same of a packet to be written: of bth.opcode, ip.v6 and payload.size().
[[nodiscard]] std::size_t packet_bytes(const Packet& packet);
// Where the payload of a parsed packet begins.
[[nodiscard]] std::size_t payload_offset(const Packet& packet);

// The ICRC: CRC-32 over the packet with those fields as ones that routers may change.
[[nodiscard]] std::uint32_t icrc_of(std::span<const std::byte> ip_packet);  // exactly packet_bytes()
[[nodiscard]] bool icrc_valid(std::span<const std::byte> ip_packet);        // likewise
void write_icrc(std::span<std::byte> ip_packet);                            // likewise

// Writes all of a packet, ICRC included; `out` has packet_bytes(packet), and packet.payload may already lie in its place.
// bth.pad is computed.
void write(std::span<std::byte> out, const Packet& packet);

// After the payload of a packet was changed: its UDP checksum, if it has one, and its ICRC.
void write_checksums(std::span<std::byte> ip_packet);  // exactly packet_bytes()

// What packets have in common that differ in nothing but their headers: the last bytes in front of the ICRC.
struct CommonEnd {
  std::size_t bytes = 0;
  std::uint32_t crc = 0;  // crc32 of them
  Crc32Shift shift{0};    // by as many
};
void write_checksums(std::span<std::byte> ip_packet, const CommonEnd& end);

}  // namespace netsum::wire::roce
