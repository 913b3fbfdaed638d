#include "wire/roce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/crc32.h"
#include "support/virtual_network.h"

namespace netsum::wire::roce {
namespace {

using Bytes = std::vector<std::byte>;

Bytes from_hex(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  return bytes;
}

Bytes written(const Packet& packet) {
  Bytes bytes(packet_bytes(packet), std::byte{0xaa});
  write(bytes, packet);
  return bytes;
}

// As Linux's soft-RoCE sent them; see tests/data/roce.
const Bytes last_immediate =
    from_hex("450000344d2a40004011d98c0a0000010a000002c19012b7002000000930ffff00000014800004010000000001000000c6cef2f6");
const Bytes acknowledgement =
    from_hex("450000304d7e40004011d93c0a0000020a000001c19012b7001c00001100ffff00000014000004031f000002d35a82bb");

std::array<std::uint8_t, 16> host(std::uint8_t last) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last};
}

const std::vector<Opcode> opcodes = [] {
  std::vector<Opcode> known;
  for (int value = 0; value < 256; ++value) {
    if (shape_of(static_cast<Opcode>(value)).known) known.push_back(static_cast<Opcode>(value));
  }
  return known;
}();

Packet sample(Opcode opcode, bool v6, bool udp_checksum, std::span<const std::byte> payload) {
  const Shape shape = shape_of(opcode);
  Packet packet;
  packet.ip = {.v6 = v6, .source = host(1), .destination = host(2), .traffic_class = 0xa5, .hop_limit = 63};
  if (v6) {
    packet.ip.source[0] = packet.ip.destination[0] = 0xfd;
    packet.ip.flow_label = 0x54321;
  } else {
    packet.ip.identification = 0x1234;
    packet.ip.fragment = 0;
  }
  packet.source_port = 0xc001;
  packet.udp_checksum = udp_checksum ? 1 : 0;
  packet.bth = {.opcode = opcode, .ack_request = true, .destination_qp = 0x123456, .psn = 0xfedcba};
  if (shape.reth) packet.reth = {0x1122334455667788, 0x99aabbcc, 0x10000};
  if (shape.aeth) packet.aeth = {Aeth::nak_sequence, 0x00abcd};
  if (shape.immediate) packet.immediate = 0xdeadbeef;
  if (shape.payload) packet.payload = payload;
  return packet;
}

TEST(RocePsn, IsComparedInSequence) {
  EXPECT_EQ(0, psn_distance(7, 7));
  EXPECT_EQ(2, psn_distance(0xffffff, 1));
  EXPECT_EQ(-2, psn_distance(1, 0xffffff));
  EXPECT_EQ(0x7fffff, psn_distance(0, 0x7fffff));
  EXPECT_EQ(-0x800000, psn_distance(0, 0x800000));
}

// The opcodes' table of InfiniBand's specification (9.2.1), as far as it is in use here.
TEST(RoceShape, OfEveryOpcode) {
  const auto is = [](Opcode opcode, std::string_view expected) {
    const Shape s = shape_of(opcode);
    std::string found;
    if (s.known) found += 'k';
    if (s.request) found += 'q';
    if (s.write) found += 'w';
    if (s.first) found += 'f';
    if (s.last) found += 'l';
    if (s.reth) found += 'r';
    if (s.aeth) found += 'a';
    if (s.immediate) found += 'i';
    if (s.payload) found += 'p';
    EXPECT_EQ(expected, found) << static_cast<int>(opcode);
  };
  is(Opcode::rc_send_first, "kqfp");
  is(Opcode::rc_send_middle, "kqp");
  is(Opcode::rc_send_last, "kqlp");
  is(Opcode::rc_send_last_immediate, "kqlip");
  is(Opcode::rc_send_only, "kqflp");
  is(Opcode::rc_send_only_immediate, "kqflip");
  is(Opcode::rc_write_first, "kqwfrp");
  is(Opcode::rc_write_middle, "kqwp");
  is(Opcode::rc_write_last, "kqwlp");
  is(Opcode::rc_write_last_immediate, "kqwlip");
  is(Opcode::rc_write_only, "kqwflrp");
  is(Opcode::rc_write_only_immediate, "kqwflrip");
  is(Opcode::rc_read_request, "kflr");
  is(Opcode::rc_read_response_first, "kfap");
  is(Opcode::rc_read_response_middle, "kp");
  is(Opcode::rc_read_response_last, "klap");
  is(Opcode::rc_read_response_only, "kflap");
  is(Opcode::rc_acknowledge, "ka");
  is(Opcode::uc_send_first, "kqfp");
  is(Opcode::uc_send_only_immediate, "kqflip");
  is(Opcode::uc_write_first, "kqwfrp");
  is(Opcode::uc_write_middle, "kqwp");
  is(Opcode::uc_write_last, "kqwlp");
  is(Opcode::uc_write_last_immediate, "kqwlip");
  is(Opcode::uc_write_only, "kqwflrp");
  is(Opcode::uc_write_only_immediate, "kqwflrip");
  is(Opcode::congestion_notification, "kp");
  EXPECT_EQ(18U + 12 + 1, opcodes.size());
}

TEST(RocePacket, ARecordedWriteIsReadFieldByField) {
  Packet packet;
  ASSERT_TRUE(is_roce(last_immediate));
  ASSERT_EQ(ParseError::none, parse(last_immediate, packet));
  Ip ip{.source = host(1), .destination = host(2)};
  ip.identification = 0x4d2a;
  EXPECT_EQ(ip, packet.ip);
  EXPECT_EQ(0xc190, packet.source_port);
  EXPECT_EQ(0, packet.udp_checksum);
  Bth bth{.opcode = Opcode::rc_write_last_immediate, .ack_request = true, .pad = 3};
  bth.destination_qp = 0x14;
  bth.psn = 0x401;
  EXPECT_EQ(bth, packet.bth);
  EXPECT_EQ(Reth(), packet.reth);
  EXPECT_EQ(Aeth(), packet.aeth);
  EXPECT_EQ(0U, packet.immediate);
  ASSERT_EQ(1U, packet.payload.size());
  EXPECT_EQ(last_immediate.data() + 44, packet.payload.data());
  EXPECT_EQ(44U, payload_offset(packet));
  EXPECT_EQ(52U, packet_bytes(packet));
  EXPECT_EQ(52U, packet_bytes(std::span(last_immediate)));
  EXPECT_TRUE(icrc_valid(last_immediate));
  EXPECT_EQ(last_immediate, written(packet));
}

TEST(RocePacket, ARecordedAcknowledgementIsReadFieldByField) {
  Packet packet;
  ASSERT_EQ(ParseError::none, parse(acknowledgement, packet));
  EXPECT_EQ(Opcode::rc_acknowledge, packet.bth.opcode);
  EXPECT_FALSE(packet.bth.ack_request);
  EXPECT_EQ(0x403U, packet.bth.psn);
  EXPECT_EQ((Aeth{Aeth::ack, 2}), packet.aeth);
  EXPECT_TRUE(packet.payload.empty());
  EXPECT_TRUE(icrc_valid(acknowledgement));
  EXPECT_EQ(acknowledgement, written(packet));
}

TEST(RocePacket, EveryOpcodeComesBackAsItWasWritten) {
  Bytes payload(257);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i);
  for (const Opcode opcode : opcodes) {
    for (const bool v6 : {false, true}) {
      for (const bool checksum : {false, true}) {
        const Packet packet = sample(opcode, v6, checksum, payload);
        const Bytes bytes = written(packet);
        Packet again;
        ASSERT_TRUE(is_roce(bytes));
        ASSERT_EQ(ParseError::none, parse(bytes, again)) << static_cast<int>(opcode) << v6;
        EXPECT_EQ(packet.ip, again.ip);
        EXPECT_EQ(packet.source_port, again.source_port);
        EXPECT_EQ(checksum, again.udp_checksum != 0);
        Bth bth = packet.bth;
        bth.pad = shape_of(opcode).payload ? 3 : 0;
        EXPECT_EQ(bth, again.bth);
        EXPECT_EQ(packet.reth, again.reth);
        EXPECT_EQ(packet.aeth, again.aeth);
        EXPECT_EQ(packet.immediate, again.immediate);
        EXPECT_TRUE(std::equal(packet.payload.begin(), packet.payload.end(), again.payload.begin(), again.payload.end()));
        EXPECT_EQ(bytes.size(), packet_bytes(std::span(std::as_const(bytes))));
        EXPECT_TRUE(icrc_valid(bytes));
        EXPECT_EQ(bytes, written(again));
      }
    }
  }
}

// What parse() says after a byte was changed; `fix` restores the IPv4 header's checksum.
ParseError after(Bytes bytes, std::size_t at, int value, bool fix = true) {
  bytes[at] = static_cast<std::byte>(value);
  if (fix && bytes[0] == std::byte{0x45}) {
    bytes[10] = bytes[11] = std::byte{0};
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < ipv4_bytes; i += 2) sum += load_be<std::uint16_t>(bytes.data() + i);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    store_be(bytes.data() + 10, static_cast<std::uint16_t>(~sum));
  }
  Packet packet;
  return parse(bytes, packet);
}

TEST(RoceParse, RefusesWhatIsCut) {
  for (const bool v6 : {false, true}) {
    const Bytes payload(8);
    const Bytes whole = written(sample(Opcode::rc_write_only_immediate, v6, false, payload));
    Packet packet;
    for (std::size_t length = 0; length < whole.size(); ++length) {
      ASSERT_EQ(ParseError::truncated, parse(std::span(whole).first(length), packet)) << length;
    }
    EXPECT_EQ(ParseError::none, parse(whole, packet));
  }
}

TEST(RoceParse, RefusesOtherVersions) {
  EXPECT_EQ(ParseError::version, after(last_immediate, 0, 0x55));
  EXPECT_EQ(ParseError::version, after(last_immediate, 29, 0x31));  // of the BTH
}

TEST(RoceParse, RefusesOptionsAndFragmentsAndOtherProtocols) {
  EXPECT_EQ(ParseError::field, after(last_immediate, 0, 0x46));
  EXPECT_EQ(ParseError::field, after(last_immediate, 0, 0x44));
  EXPECT_EQ(ParseError::type, after(last_immediate, 6, 0x20));  // more fragments
  EXPECT_EQ(ParseError::type, after(last_immediate, 7, 0x01));  // not the first one
  EXPECT_EQ(ParseError::none, after(last_immediate, 6, 0x00));  // may be fragmented, and is not
  EXPECT_EQ(ParseError::type, after(last_immediate, 9, 6));
  EXPECT_EQ(ParseError::type, after(last_immediate, 23, 0xb8));  // port 4792
  const Bytes v6 = written(sample(Opcode::rc_acknowledge, true, false, {}));
  EXPECT_EQ(ParseError::none, after(v6, 6, 17));
  EXPECT_EQ(ParseError::type, after(v6, 6, 44));  // a fragment header
}

TEST(RoceParse, RefusesAWrongChecksumOfTheHeader) {
  EXPECT_EQ(ParseError::none, after(last_immediate, 12, 11));
  EXPECT_EQ(ParseError::checksum, after(last_immediate, 12, 11, false));
}

TEST(RoceParse, RefusesLengthsThatDisagree) {
  EXPECT_EQ(ParseError::truncated, after(last_immediate, 3, 56));
  EXPECT_EQ(ParseError::length, after(last_immediate, 3, 48));  // UDP says otherwise
  EXPECT_EQ(ParseError::length, after(last_immediate, 3, 19));
  EXPECT_EQ(ParseError::length, after(last_immediate, 3, 27));
  EXPECT_EQ(ParseError::length, after(last_immediate, 25, 28));
  const auto shortened = [](Bytes bytes, int length, Opcode opcode) {
    bytes[3] = static_cast<std::byte>(length);
    bytes[25] = static_cast<std::byte>(length - 20);
    return after(bytes, 28, static_cast<int>(opcode));
  };
  EXPECT_EQ(ParseError::none, shortened(last_immediate, 52, Opcode::rc_write_last_immediate));
  EXPECT_EQ(ParseError::length, shortened(last_immediate, 51, Opcode::rc_write_last_immediate));  // no multiple of 4
  EXPECT_EQ(ParseError::field, shortened(last_immediate, 48, Opcode::rc_write_last_immediate));   // a pad of nothing
  EXPECT_EQ(ParseError::length, shortened(last_immediate, 44, Opcode::rc_write_last_immediate));  // no immediate
  EXPECT_EQ(ParseError::length, shortened(last_immediate, 40, Opcode::rc_write_middle));          // no BTH
  EXPECT_EQ(ParseError::length, shortened(acknowledgement, 44, Opcode::rc_acknowledge));          // half an ICRC
  EXPECT_EQ(ParseError::length, shortened(acknowledgement, 48, Opcode::rc_write_only));           // no RETH
  EXPECT_EQ(ParseError::length, shortened(last_immediate, 52, Opcode::rc_acknowledge));           // with a payload
}

TEST(RoceParse, RefusesPayloadsThatNoPathTakes) {
  for (const bool v6 : {false, true}) {
    const Bytes payload(max_mtu + 4);
    Packet packet;
    const std::span<const std::byte> fits = std::span(payload).first(max_mtu);
    EXPECT_EQ(ParseError::none, parse(written(sample(Opcode::uc_write_only_immediate, v6, true, fits)), packet));
    const Bytes longer = written(sample(Opcode::uc_write_only_immediate, v6, true, payload));
    EXPECT_EQ(ParseError::length, parse(longer, packet));
    EXPECT_EQ(ParseError::none, parse(longer, packet, max_tunnel_mtu));
  }
  // An IP packet in a datagram over either family, with any headers.
  EXPECT_GE(65535U - 48, ipv6_bytes + udp_bytes + bth_bytes + reth_bytes + immediate_bytes + max_tunnel_mtu + icrc_bytes);
}

// In three places, or at the end that packets have in common.
TEST(RoceWrite, WritesAroundAPayloadTheSameBytes) {
  const Bytes payload(100, std::byte{7});
  for (const bool v6 : {false, true}) {
    for (const std::size_t bytes : {100U, 97U}) {
      Packet packet = sample(Opcode::rc_write_only_immediate, v6, true, std::span(payload).first(bytes));
      packet.udp_checksum = 0;
      const Bytes whole = written(packet);
      Bytes head(payload_offset(packet)), tail(whole.size() - head.size() - bytes);
      write_around(head, tail, packet);
      Bytes joined = head;
      joined.insert(joined.end(), packet.payload.begin(), packet.payload.end());
      joined.insert(joined.end(), tail.begin(), tail.end());
      EXPECT_EQ(whole, joined);
      EXPECT_TRUE(icrc_valid(joined));
      EXPECT_FALSE(has_udp_checksum(whole));
      const CommonEnd end{60, crc32(std::span(whole).last(64).first(60)), Crc32Shift(60)};
      EXPECT_EQ(icrc_of(whole), icrc_of(std::span(whole).first(whole.size() - 64), end));
      packet.udp_checksum = 1;
      EXPECT_TRUE(has_udp_checksum(written(packet)));
    }
  }
}

TEST(RoceParse, KnowsPathMtus) {
  for (const std::uint32_t bytes : {256U, 512U, 1024U, 2048U, 4096U})
    EXPECT_TRUE(is_path_mtu(bytes) && is_tunnel_mtu(bytes));
  for (const std::uint32_t bytes : {8192U, 12288U, 61440U})
    EXPECT_TRUE(!is_path_mtu(bytes) && is_tunnel_mtu(bytes)) << bytes;
  for (const std::uint32_t bytes : {0U, 1U, 128U, 768U, 4100U, 6144U, 65536U, 0x80000000U}) {
    EXPECT_FALSE(is_path_mtu(bytes) || is_tunnel_mtu(bytes)) << bytes;
  }
}

TEST(RoceParse, RefusesOtherOpcodes) {
  for (int value = 0; value < 256; ++value) {
    const bool known = std::find(opcodes.begin(), opcodes.end(), static_cast<Opcode>(value)) != opcodes.end();
    const ParseError error = after(last_immediate, 28, value);
    if (!known) {
      EXPECT_EQ(ParseError::type, error) << value;
    }
  }
}

TEST(RoceParse, LeavesNothingOfAnEarlierPacket) {
  const Bytes payload(16);
  Packet fresh, reused;
  for (const Opcode earlier : opcodes) {
    for (const bool v6 : {false, true}) {
      for (const bool later_v6 : {false, true}) {
        for (const Opcode later : {Opcode::rc_write_middle, Opcode::rc_acknowledge, Opcode::rc_write_only_immediate}) {
          const Bytes first = written(sample(earlier, v6, true, payload)),
                      second = written(sample(later, later_v6, false, payload));
          fresh = Packet();
          ASSERT_EQ(ParseError::none, parse(second, fresh));
          ASSERT_EQ(ParseError::none, parse(first, reused));
          ASSERT_EQ(ParseError::none, parse(second, reused));
          EXPECT_TRUE(fresh.ip == reused.ip && fresh.bth == reused.bth && fresh.reth == reused.reth &&
                      fresh.aeth == reused.aeth);
          EXPECT_EQ(fresh.immediate, reused.immediate);
          EXPECT_EQ(fresh.udp_checksum, reused.udp_checksum);
        }
      }
    }
  }
}

TEST(RocePacket, IsToldFromOtherTraffic) {
  const auto changed = [](Bytes bytes, std::size_t at, int value) {
    bytes[at] = static_cast<std::byte>(value);
    return is_roce(bytes);
  };
  EXPECT_FALSE(is_roce({}));
  EXPECT_TRUE(is_roce(std::span(last_immediate).first(28)));
  EXPECT_FALSE(is_roce(std::span(last_immediate).first(27)));
  EXPECT_FALSE(is_roce(std::span(last_immediate).first(19)));
  EXPECT_FALSE(changed(last_immediate, 0, 0x55));
  EXPECT_FALSE(changed(last_immediate, 0, 0x44));  // a header that is none
  EXPECT_FALSE(changed(last_immediate, 0, 0x4f));  // behind these options is something else
  EXPECT_FALSE(changed(last_immediate, 6, 0x20));
  EXPECT_FALSE(changed(last_immediate, 7, 0x01));
  EXPECT_FALSE(changed(last_immediate, 9, 6));
  EXPECT_FALSE(changed(last_immediate, 22, 0));
  EXPECT_TRUE(changed(last_immediate, 21, 0xb8));  // the source port may be any

  Bytes options = last_immediate;
  options[0] = std::byte{0x46};
  options.insert(options.begin() + ipv4_bytes, 4, std::byte{1});
  EXPECT_TRUE(is_roce(options));

  const Bytes v6 = written(sample(Opcode::rc_acknowledge, true, false, {}));
  EXPECT_TRUE(is_roce(std::span(v6).first(48)));
  EXPECT_FALSE(is_roce(std::span(v6).first(47)));
  EXPECT_FALSE(is_roce(std::span(v6).first(39)));
  EXPECT_FALSE(changed(v6, 6, 6));
  EXPECT_FALSE(changed(v6, 43, 0));
}

// Payloads until the sum of one would be 0, which would say that there is none.
TEST(RocePacket, AUdpChecksumIsNeverZero) {
  Bytes payload(4);
  bool ones = false;
  for (std::uint32_t value = 0; value < 1 << 20 && !ones; ++value) {
    store_be(payload.data(), value);
    const Bytes bytes = written(sample(Opcode::rc_send_middle, false, true, payload));
    const auto checksum = load_be<std::uint16_t>(bytes.data() + 26);
    ASSERT_NE(0, checksum);
    ones = checksum == 0xffff;
  }
  EXPECT_TRUE(ones);
}

}  // namespace
}  // namespace netsum::wire::roce
