// Any RoCEv2 packet comes back as it was written, and its checksums are those of their definitions, computed here bit by bit
// and from a byte-by-byte picture of the packet that shares no code with what is tested.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/crc32.h"
#include "wire/roce.h"

namespace netsum::wire::roce {
namespace {

using Bytes = std::vector<std::byte>;

// Appends big-endian numbers.
struct Picture {
  Bytes bytes;
  template <class T>
  void number(T value, std::size_t length) {
    for (std::size_t i = length; i-- > 0;) bytes.push_back(static_cast<std::byte>(std::uint64_t{value} >> (8 * i)));
  }
  void copy(const std::uint8_t* from, std::size_t length) {
    for (std::size_t i = 0; i < length; ++i) bytes.push_back(static_cast<std::byte>(from[i]));
  }
};

std::uint32_t crc_bit_by_bit(const Bytes& bytes) {
  std::uint32_t state = 0xffffffff;
  for (const std::byte byte : bytes) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      const bool one = ((state ^ (std::to_integer<std::uint32_t>(byte) >> bit)) & 1) != 0;
      state = (state >> 1) ^ (one ? 0xedb88320 : 0);
    }
  }
  return ~state;
}

// RFC 1071, two bytes at a time.
std::uint16_t internet_checksum(const Bytes& bytes) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    sum += std::to_integer<std::uint32_t>(bytes[i]) << 8;
    if (i + 1 < bytes.size()) sum += std::to_integer<std::uint32_t>(bytes[i + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<std::uint16_t>(~sum);
}

Bytes ip_header(const Ip& ip, std::size_t payload, bool masked, std::uint16_t checksum = 0) {
  Picture p;
  const std::uint64_t traffic_class = masked ? 0xff : ip.traffic_class, hop_limit = masked ? 0xff : ip.hop_limit;
  if (ip.v6) {
    p.number(std::uint64_t{6} << 28 | traffic_class << 20 | (masked ? 0xfffff : ip.flow_label), 4);
    p.number(payload, 2);
    p.number(17U, 1);
    p.number(hop_limit, 1);
    p.copy(ip.source.data(), 16);
    p.copy(ip.destination.data(), 16);
  } else {
    p.number(0x45U, 1);
    p.number(traffic_class, 1);
    p.number(payload + 20, 2);
    p.number(ip.identification, 2);
    p.number(ip.fragment, 2);
    p.number(hop_limit, 1);
    p.number(17U, 1);
    p.number(masked ? std::uint16_t{0xffff} : checksum, 2);
    p.copy(ip.source.data() + 12, 4);
    p.copy(ip.destination.data() + 12, 4);
  }
  return p.bytes;
}

// From the UDP header up to the ICRC.
Bytes udp_packet(const Packet& packet, bool masked, std::uint16_t checksum = 0) {
  const Bth& bth = packet.bth;
  const Shape shape = shape_of(bth.opcode);
  const std::size_t pad = (4 - packet.payload.size() % 4) % 4;
  Picture rest;
  if (shape.reth) {
    rest.number(packet.reth.address, 8);
    rest.number(packet.reth.key, 4);
    rest.number(packet.reth.length, 4);
  }
  if (shape.aeth) {
    rest.number(packet.aeth.syndrome, 1);
    rest.number(packet.aeth.msn, 3);
  }
  if (shape.immediate) rest.number(packet.immediate, 4);
  rest.bytes.insert(rest.bytes.end(), packet.payload.begin(), packet.payload.end());
  rest.bytes.insert(rest.bytes.end(), pad, std::byte{0});

  Picture p;
  p.number(packet.source_port, 2);
  p.number(4791U, 2);
  p.number(8 + 12 + rest.bytes.size() + 4, 2);
  p.number(masked ? std::uint16_t{0xffff} : checksum, 2);
  p.number(static_cast<std::uint8_t>(bth.opcode), 1);
  p.number((bth.solicited ? 0x80U : 0U) | (bth.migration ? 0x40U : 0U) | static_cast<unsigned>(pad) << 4, 1);
  p.number(bth.partition_key, 2);
  p.number(masked ? 0xffU : (bth.fecn ? 0x80U : 0U) | (bth.becn ? 0x40U : 0U) | bth.reserved6, 1);
  p.number(bth.destination_qp, 3);
  p.number((bth.ack_request ? 0x80U : 0U) | bth.reserved7, 1);
  p.number(bth.psn, 3);
  p.bytes.insert(p.bytes.end(), rest.bytes.begin(), rest.bytes.end());
  return p.bytes;
}

// The whole packet.
Bytes picture_of(const Packet& packet) {
  Bytes covered(8, std::byte{0xff});
  const Bytes masked_udp = udp_packet(packet, true);
  const std::size_t length = masked_udp.size() + 4;
  for (const Bytes& part : {ip_header(packet.ip, length, true), masked_udp}) {
    covered.insert(covered.end(), part.begin(), part.end());
  }
  const std::uint32_t icrc = crc_bit_by_bit(covered);
  const auto whole_udp = [&](std::uint16_t checksum) {
    Bytes udp = udp_packet(packet, false, checksum);
    for (unsigned i = 0; i < 4; ++i) udp.push_back(static_cast<std::byte>(icrc >> (8 * i)));
    return udp;
  };
  std::uint16_t udp_checksum = 0;
  if (packet.udp_checksum != 0) {
    Picture pseudo;  // RFC 768; RFC 8200, 8.1
    const std::size_t first = packet.ip.v6 ? 0 : 12;
    pseudo.copy(packet.ip.source.data() + first, 16 - first);
    pseudo.copy(packet.ip.destination.data() + first, 16 - first);
    pseudo.number(length, 4);
    pseudo.number(17U, 4);
    const Bytes udp = whole_udp(0);
    pseudo.bytes.insert(pseudo.bytes.end(), udp.begin(), udp.end());
    udp_checksum = internet_checksum(pseudo.bytes);
    if (udp_checksum == 0) udp_checksum = 0xffff;
  }
  Bytes whole = ip_header(packet.ip, length, false, internet_checksum(ip_header(packet.ip, length, false)));
  const Bytes udp = whole_udp(udp_checksum);
  whole.insert(whole.end(), udp.begin(), udp.end());
  return whole;
}

template <class T>
T any() {
  return *rc::gen::arbitrary<T>();
}

std::uint32_t any_below(std::uint32_t bound) {
  return *rc::gen::inRange<std::uint32_t>(0, bound);
}

Bytes any_bytes(std::size_t length) {
  const auto numbers = *rc::gen::container<std::vector<std::uint8_t>>(length, rc::gen::arbitrary<std::uint8_t>());
  Bytes bytes(length);
  std::transform(numbers.begin(), numbers.end(), bytes.begin(), [](std::uint8_t number) { return std::byte{number}; });
  return bytes;
}

std::array<std::uint8_t, 16> any_address(bool v6) {
  std::array<std::uint8_t, 16> address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  for (std::size_t i = v6 ? 0 : 12; i < 16; ++i) address[i] = any<std::uint8_t>();
  return address;
}

// `payload` holds what the packet refers to.
Packet any_packet(Bytes& payload) {
  static const std::vector<int> opcodes = [] {
    std::vector<int> known;
    for (int value = 0; value < 256; ++value) {
      if (shape_of(static_cast<Opcode>(value)).known) known.push_back(value);
    }
    return known;
  }();
  Packet packet;
  Ip& ip = packet.ip;
  ip.v6 = any<bool>();
  ip.source = any_address(ip.v6);
  ip.destination = any_address(ip.v6);
  ip.traffic_class = any<std::uint8_t>();
  ip.hop_limit = any<std::uint8_t>();
  if (ip.v6) {
    ip.flow_label = any_below(1 << 20);
  } else {
    ip.identification = any<std::uint16_t>();
    ip.fragment = any<bool>() ? 0x4000 : 0;
  }
  packet.source_port = any<std::uint16_t>();
  packet.udp_checksum = any<bool>() ? any<std::uint16_t>() : 0;
  Bth& bth = packet.bth;
  bth.opcode = static_cast<Opcode>(*rc::gen::elementOf(opcodes));
  const Shape shape = shape_of(bth.opcode);
  bth.solicited = any<bool>();
  bth.migration = any<bool>();
  bth.fecn = any<bool>();
  bth.becn = any<bool>();
  bth.ack_request = any<bool>();
  bth.partition_key = any<std::uint16_t>();
  bth.reserved6 = static_cast<std::uint8_t>(any_below(64));
  bth.reserved7 = static_cast<std::uint8_t>(any_below(128));
  bth.destination_qp = any_below(1 << 24);
  bth.psn = any_below(1 << 24);
  if (shape.reth) packet.reth = {any<std::uint64_t>(), any<std::uint32_t>(), any<std::uint32_t>()};
  if (shape.aeth) packet.aeth = {any<std::uint8_t>(), any_below(1 << 24)};
  if (shape.immediate) packet.immediate = any<std::uint32_t>();
  if (shape.payload) payload = any_bytes(any_below(8) == 0 ? max_mtu - any_below(4) : any_below(300));
  packet.payload = payload;
  bth.pad = static_cast<std::uint8_t>((4 - payload.size() % 4) % 4);
  return packet;
}

void expect_same(const Packet& expected, const Packet& found) {
  RC_ASSERT(expected.ip == found.ip);
  RC_ASSERT(expected.source_port == found.source_port);
  RC_ASSERT((expected.udp_checksum != 0) == (found.udp_checksum != 0));
  RC_ASSERT(expected.bth == found.bth);
  RC_ASSERT(expected.reth == found.reth);
  RC_ASSERT(expected.aeth == found.aeth);
  RC_ASSERT(expected.immediate == found.immediate);
  RC_ASSERT(std::equal(expected.payload.begin(), expected.payload.end(), found.payload.begin(), found.payload.end()));
}

TEST(RocePacketProperty, IsWrittenAsThePictureOfItAndReadBack) {
  EXPECT_TRUE(rc::check([] {
    Bytes payload;
    const Packet packet = any_packet(payload);
    const Bytes expected = picture_of(packet);
    Bytes bytes(packet_bytes(packet), std::byte{0xaa});
    write(bytes, packet);
    RC_ASSERT(bytes == expected);
    RC_ASSERT(icrc_valid(bytes));

    Bytes longer = bytes;  // Ethernet pads short frames
    longer.resize(longer.size() + any_below(20), std::byte{0xee});
    Packet again;
    RC_ASSERT(is_roce(longer));
    RC_ASSERT(parse(longer, again) == ParseError::none);
    RC_ASSERT(packet_bytes(std::span<const std::byte>(longer)) == bytes.size());
    RC_ASSERT(payload_offset(again) == payload_offset(packet));
    expect_same(packet, again);
  }));
}

TEST(RocePacketProperty, ChecksumsFollowAChangeOfThePayload) {
  EXPECT_TRUE(rc::check([] {
    Bytes payload;
    Packet packet = any_packet(payload);
    RC_PRE(!payload.empty());
    Bytes bytes(packet_bytes(packet));
    write(bytes, packet);
    const Bytes changed = any_bytes(payload.size());
    std::copy(changed.begin(), changed.end(), bytes.begin() + static_cast<std::ptrdiff_t>(payload_offset(packet)));
    if (changed != payload) RC_ASSERT(!icrc_valid(bytes));
    write_checksums(bytes);
    packet.payload = changed;
    RC_ASSERT(bytes == picture_of(packet));
    // And if the sum of their last bytes is known.
    const std::size_t end = bytes.size() - icrc_bytes;
    CommonEnd common;
    common.bytes = *rc::gen::inRange<std::size_t>(0, end - payload_offset(packet) + 1);
    common.crc = crc32(std::span(bytes).subspan(end - common.bytes, common.bytes));
    common.shift = Crc32Shift(common.bytes);
    const Bytes expected = bytes;
    std::fill_n(bytes.end() - icrc_bytes, icrc_bytes, std::byte{0});
    write_checksums(bytes, common);
    RC_ASSERT(bytes == expected);
  }));
}

TEST(RocePacketProperty, ThePayloadMayLieInItsPlaceOrAcrossIt) {
  EXPECT_TRUE(rc::check([] {
    Bytes payload;
    Packet packet = any_packet(payload);
    const Bytes expected = picture_of(packet);
    Bytes bytes(packet_bytes(packet));
    const std::size_t at =
        any<bool>() ? payload_offset(packet) : any_below(static_cast<std::uint32_t>(bytes.size() - payload.size()));
    std::copy(payload.begin(), payload.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
    packet.payload = std::span(bytes).subspan(at, payload.size());
    write(bytes, packet);
    RC_ASSERT(bytes == expected);
  }));
}

// The part of a packet that the ICRC does not cover may change on the way (IBA, A17.3.3 and A17.5.1).
TEST(RocePacketProperty, AFlippedBitIsDetectedUnlessRoutersMayFlipIt) {
  EXPECT_TRUE(rc::check([] {
    Bytes payload;
    const Packet packet = any_packet(payload);
    Bytes bytes(packet_bytes(packet));
    write(bytes, packet);
    const std::size_t udp = packet.ip.v6 ? ipv6_bytes : ipv4_bytes;
    const std::size_t at = any<bool>() ? any_below(static_cast<std::uint32_t>(udp + udp_bytes + bth_bytes))
                                       : any_below(static_cast<std::uint32_t>(bytes.size()));
    const auto bit = any_below(8);
    bytes[at] ^= std::byte{1} << bit;
    bool masked = at == udp + 6 || at == udp + 7 || at == udp + 8 + 4;
    if (packet.ip.v6) masked = masked || (at == 0 && bit < 4) || (at >= 1 && at <= 3) || at == 7;
    Packet again;
    RC_ASSERT(masked == (parse(bytes, again) == ParseError::none && icrc_valid(bytes)));
  }));
}

}  // namespace
}  // namespace netsum::wire::roce
