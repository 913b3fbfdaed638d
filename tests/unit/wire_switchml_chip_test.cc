// The chip profile's packets, byte by byte.

#include "wire/switchml_chip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "wire/atp.h"

namespace netsum::wire::chip {
namespace {

// As docs/protocol-switchml-chip.md says.
std::vector<std::byte> made_by_hand() {
  std::vector<std::byte> bytes(header_bytes + 64 * 4);
  const auto put = [&](std::size_t at, std::initializer_list<int> values) {
    for (const int value : values) bytes[at++] = static_cast<std::byte>(value);
  };
  put(0, {0xc1, 1, 30, 1, 0x01, 0x02, 0x0a, 0xbc});
  put(8, {0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11});  // the epoch, as in the other formats
  put(16, {0x7f, 0xff, 0xff, 0xfe, 0x00, 0xff, 0x01, 0x00});
  put(24, {1, 2, 3, 4, 5, 6, 7, 8});
  put(32, {0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x00, 0x01});
  put(48, {0xff, 0xff, 0xff, 0xfe});
  return bytes;
}

Header header_by_hand() {
  return {.type = Type::contribution,
          .member = 30,
          .version = 1,
          .slot = 0x0102,
          .rank = 0x0abc,
          .job_epoch = 0x1122334455667788,
          .round = max_round,
          .exponents = {not_finite, unknown},
          .echoed = {0x0102030405060708, 0x11121314, 0x21222324, 0x31323334, 0x4142, 1}};
}

TEST(WireSwitchmlChip, IsReadAsTheDocumentSays) {
  const auto bytes = made_by_hand();
  Packet packet;
  ASSERT_EQ(ParseError::none, parse(bytes, packet));
  EXPECT_EQ(header_by_hand(), packet.header);
  ASSERT_EQ(256U, packet.payload.size());
  EXPECT_EQ(0xfffffffeU, load_be<std::uint32_t>(packet.payload.data()));
}

TEST(WireSwitchmlChip, IsWrittenAsTheDocumentSays) {
  const auto expected = made_by_hand();
  std::vector<std::byte> bytes(expected.size(), std::byte{0xaa});
  write_header(bytes, header_by_hand());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + header_bytes, expected.begin()));
  EXPECT_EQ(std::byte{0xaa}, bytes[header_bytes]) << "the payload is its writer's";
}

TEST(WireSwitchmlChip, TheFirstByteIsNoOtherFormats) {
  EXPECT_NE(switchml::version, format);
  EXPECT_NE(2, format) << "SwitchML's next";
  EXPECT_NE(atp::version, format);
  EXPECT_NE(0x40, format & 0xf0);
  EXPECT_NE(0x60, format & 0xf0);
}

TEST(WireSwitchmlChip, WhatIsOutOfRangeIsMalformed) {
  const std::pair<std::size_t, int> changes[] = {{2, 31}, {3, 2}, {22, 2}, {20, 1}};
  for (const auto& [at, value] : changes) {
    auto bytes = made_by_hand();
    bytes[at] = static_cast<std::byte>(value);
    Packet packet;
    EXPECT_EQ(ParseError::field, parse(bytes, packet)) << "byte " << at;
  }
  auto bytes = made_by_hand();
  store_be(bytes.data() + 16, max_round + 1);
  Packet packet;
  EXPECT_EQ(ParseError::field, parse(bytes, packet)) << "a round whose registers would wrap around";
  bytes = made_by_hand();
  store_be(bytes.data() + 22, static_cast<std::uint16_t>(unknown + 1));
  EXPECT_EQ(ParseError::field, parse(bytes, packet));
}

TEST(WireSwitchmlChip, FormatTypeAndLengthAreChecked) {
  Packet packet;
  auto bytes = made_by_hand();
  bytes[0] = std::byte{1};
  EXPECT_EQ(ParseError::version, parse(bytes, packet));
  for (const int type : {0, 3, 255}) {
    bytes = made_by_hand();
    bytes[1] = static_cast<std::byte>(type);
    EXPECT_EQ(ParseError::type, parse(bytes, packet));
  }
  const auto length = [&](std::size_t size) {
    bytes = made_by_hand();
    bytes.resize(size);
    return parse(bytes, packet);
  };
  for (const std::size_t size : {0U, 1U, 47U}) EXPECT_EQ(ParseError::truncated, length(size));
  for (const std::size_t size : {48U, 303U, 305U, 48U + 128 * 4, 1071U, 1073U}) EXPECT_EQ(ParseError::length, length(size));
  EXPECT_EQ(ParseError::none, length(packet_bytes(64)));
  EXPECT_EQ(ParseError::none, length(packet_bytes(256)));
}

}  // namespace
}  // namespace netsum::wire::chip
