// What soft-RoCE sent (tests/data/roce): every packet is read, comes back byte by byte, and has the ICRC that is computed
// here.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "support/pcap.h"
#include "wire/ethernet.h"
#include "wire/roce.h"

namespace netsum::wire::roce {
namespace {

using Bytes = std::vector<std::byte>;

struct Recorded {
  std::string capture;
  std::size_t number = 0;  // of the frame in it, from 0
  Bytes frame;
  [[nodiscard]] std::span<const std::byte> packet() const { return std::span(frame).subspan(ethernet::header_bytes); }
};

const std::vector<Recorded>& recordings() {
  static const std::vector<Recorded> all = [] {
    std::set<std::filesystem::path> captures;
    for (const auto& entry : std::filesystem::directory_iterator(NETSUM_TEST_DATA "/roce")) {
      if (entry.path().extension() == ".pcap") captures.insert(entry.path());
    }
    std::vector<Recorded> packets;
    for (const auto& path : captures) {
      std::size_t number = 0;
      for (auto& frame : testing::read_pcap(path.string())) {
        packets.push_back({path.stem().string(), number++, std::move(frame.bytes)});
      }
    }
    return packets;
  }();
  return all;
}

// One packet has a bit of its payload flipped on purpose: the first 1602 that arrived.
bool corrupted(const Recorded& recorded) {
  return recorded.capture == "rc_write_imm_bad_icrc.rx" && recorded.number == 2;
}

TEST(RoceRecordings, EveryPacketIsReadAndWrittenAsItWas) {
  std::set<std::string> captures;
  for (const Recorded& recorded : recordings()) {
    SCOPED_TRACE(recorded.capture + " " + std::to_string(recorded.number));
    captures.insert(recorded.capture);
    const auto ethernet = ethernet::parse(recorded.frame);
    ASSERT_TRUE(ethernet.has_value());
    EXPECT_EQ(ethernet::ipv4, ethernet->type);
    ASSERT_EQ(ethernet::header_bytes, ethernet->bytes);
    const auto bytes = recorded.packet();
    Packet packet;
    ASSERT_TRUE(is_roce(bytes));
    ASSERT_EQ(ParseError::none, parse(bytes, packet));
    ASSERT_EQ(bytes.size(), packet_bytes(bytes));
    EXPECT_EQ(!corrupted(recorded), icrc_valid(bytes));

    Bytes again(packet_bytes(packet), std::byte{0xaa});
    write(again, packet);
    if (corrupted(recorded)) {  // the ICRC that is right
      EXPECT_NE(Bytes(bytes.end() - icrc_bytes, bytes.end()), Bytes(again.end() - icrc_bytes, again.end()));
      std::copy_n(bytes.end() - icrc_bytes, icrc_bytes, again.end() - icrc_bytes);
    }
    ASSERT_EQ(Bytes(bytes.begin(), bytes.end()), again);
  }
  EXPECT_EQ(52U, captures.size());
  EXPECT_EQ(4035U, recordings().size());
}

TEST(RoceRecordings, HaveTheOpcodesThatTheyAreMeantToHave) {
  std::set<Opcode> found;
  for (const Recorded& recorded : recordings()) {
    Packet packet;
    ASSERT_EQ(ParseError::none, parse(recorded.packet(), packet));
    found.insert(packet.bth.opcode);
  }
  const std::set<Opcode> expected = {
      Opcode::rc_send_first,           Opcode::rc_send_middle,          Opcode::rc_send_last,
      Opcode::rc_send_last_immediate,  Opcode::rc_write_first,          Opcode::rc_write_middle,
      Opcode::rc_write_last,           Opcode::rc_write_last_immediate, Opcode::rc_write_only_immediate,
      Opcode::rc_read_request,         Opcode::rc_read_response_first,  Opcode::rc_read_response_middle,
      Opcode::rc_read_response_last,   Opcode::rc_acknowledge,          Opcode::uc_send_first,
      Opcode::uc_send_middle,          Opcode::uc_send_last_immediate,  Opcode::uc_write_first,
      Opcode::uc_write_middle,         Opcode::uc_write_last,           Opcode::uc_write_last_immediate,
      Opcode::uc_write_only_immediate,
  };
  EXPECT_EQ(expected, found);
}

// What routers may change is not covered: type of service, time to live and the IPv4 header's checksum (which has to follow
// them), the UDP checksum, and the byte of the BTH that has the congestion marks.
bool masked(std::size_t byte) {
  return byte == 1 || byte == 8 || byte == 10 || byte == 11 || byte == 26 || byte == 27 || byte == 32;
}

TEST(RoceRecordings, AnyFlippedBitIsDetected) {
  std::map<std::pair<Opcode, std::size_t>, int> tried;  // of each opcode and length some
  for (const Recorded& recorded : recordings()) {
    if (corrupted(recorded)) continue;
    Packet packet;
    ASSERT_EQ(ParseError::none, parse(recorded.packet(), packet));
    if (++tried[{packet.bth.opcode, recorded.frame.size()}] > 2) continue;
    Bytes bytes(recorded.packet().begin(), recorded.packet().end());
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (unsigned bit = 0; bit < 8; ++bit) {
        SCOPED_TRACE(recorded.capture + " " + std::to_string(recorded.number) + ", byte " + std::to_string(at));
        bytes[at] ^= std::byte{1} << bit;
        const bool ip = at < ipv4_bytes;  // its header has a checksum of its own
        const bool reads = parse(bytes, packet) == ParseError::none;
        if (ip) {
          ASSERT_FALSE(reads);
        }
        if (at != 0) {  // (which is the header's length)
          ASSERT_EQ(masked(at), icrc_valid(bytes));
        }
        ASSERT_EQ(!ip && masked(at), reads && icrc_valid(bytes));
        bytes[at] ^= std::byte{1} << bit;
      }
    }
  }
  std::set<Opcode> opcodes;
  for (const auto& [kind, times] : tried) opcodes.insert(kind.first);
  EXPECT_EQ(22U, opcodes.size());
}

}  // namespace
}  // namespace netsum::wire::roce
