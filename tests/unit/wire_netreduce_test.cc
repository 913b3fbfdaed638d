// docs/protocol-netreduce.md, offset by offset: a change of the format must be a change of this test.
#include "wire/netreduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "support/virtual_network.h"

namespace netsum::wire::netreduce {
namespace {

using Bytes = std::vector<std::byte>;
using netsum::testing::Random;

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

const InaHeader some_header = {0x01020304, 0x11121314, 0x2122232425262728, 0x3132, 0x41424344, DType::bfloat16, true};

// ---- headers

TEST(NetreduceHeader, OurOwnIsWhatTheSpecificationSays) {
  Bytes payload(44, std::byte{0xee});
  write_header(netsum_layout, payload, some_header);
  EXPECT_EQ(bytes_of({0,    0,    0,    0,    0,    0,    0,    0,     // seal
                      'N',  'S',  'n',  'r',                           // InetTag
                      3,    1,                                         // dtype, flags
                      0x32, 0x31,                                      // MsgLen
                      0x04, 0x03, 0x02, 0x01,                          // RingID
                      0x14, 0x13, 0x12, 0x11,                          // Rank
                      0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,  // MsgID
                      0x44, 0x43, 0x42, 0x41,                          // signature
                      0,    0,    0,    0,                             // reserved
                      0xee, 0xee, 0xee, 0xee}),
            payload);
  EXPECT_EQ(some_header, read_header(netsum_layout, payload));
}

TEST(NetreduceHeader, TheRecordedRingsIs) {
  Bytes payload(20, std::byte{0xee});
  write_header(nrtv_layout, payload, {0x0102, 2, 7, 8});
  EXPECT_EQ(bytes_of({'N', 'R', 't', 'v', 0x02, 0x01, 2, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0xee, 0xee, 0xee, 0xee}), payload);
  EXPECT_EQ((InaHeader{0x0102, 2, 7, 8}), read_header(nrtv_layout, payload));
}

TEST(NetreduceHeader, FieldsMayBeBigEndianAndOfAnyWidth) {
  const Layout layout = parse_layout(
      "magic=c0ffee@3,ring=0:1,rank=1:2,message=6:3,packets=9:2,signature=11:4,dtype=15:1,flags=16:1,header=20,endian=big");
  Bytes payload(20);
  const InaHeader header = {0xa1, 0xb2c3, 0xd4e5f6, 0x0708, 0x090a0b0c, DType::float16, false};
  write_header(layout, payload, header);
  EXPECT_EQ(bytes_of({0xa1, 0xb2, 0xc3, 0xc0, 0xff, 0xee, 0xd4, 0xe5, 0xf6, 7, 8, 9, 0x0a, 0x0b, 0x0c, 2, 0, 0, 0, 0}),
            payload);
  EXPECT_EQ(header, read_header(layout, payload));
}

TEST(NetreduceHeader, IsNotReadFromWhatHasNone) {
  Bytes payload(40);
  write_header(netsum_layout, payload, some_header);
  for (std::size_t size = 0; size < 40; ++size) EXPECT_FALSE(read_header(netsum_layout, std::span(payload).first(size)));
  EXPECT_TRUE(read_header(netsum_layout, payload));
  const auto changed = [&](std::size_t at, int to) {
    Bytes other = payload;
    other[at] = static_cast<std::byte>(to);
    return read_header(netsum_layout, other);
  };
  for (std::size_t at = 8; at < 12; ++at) EXPECT_FALSE(changed(at, 0)) << "the magic";
  EXPECT_TRUE(changed(12, 0));
  EXPECT_FALSE(changed(12, 4)) << "no such type";
  EXPECT_FALSE(changed(12, 0xff));
  EXPECT_TRUE(changed(13, 0));
  EXPECT_FALSE(changed(13, 2)) << "no such flag";
  EXPECT_FALSE(changed(13, 3));
  EXPECT_TRUE(changed(0, 1)) << "a seal is no part of it";
  EXPECT_TRUE(changed(39, 1)) << "nor what is reserved";
  EXPECT_FALSE(read_header(nrtv_layout, payload));
}

// A ring that is not ours must not become ours because its number was cut.
TEST(NetreduceHeader, NumbersThatAreTooLargeAreNoHeader) {
  const Layout layout = parse_layout("magic=aa@0,ring=4:8,rank=12:8,message=20:8,packets=28:8,signature=36:8,header=44");
  Bytes payload(44);
  write_header(layout, payload, some_header);
  EXPECT_TRUE(read_header(layout, payload));
  for (const std::size_t at : {std::size_t{4}, std::size_t{12}, std::size_t{28}, std::size_t{36}}) {
    for (std::size_t byte = 4; byte < 8; ++byte) {
      Bytes other = payload;
      other[at + byte] = std::byte{1};
      EXPECT_FALSE(read_header(layout, other)) << at + byte;
    }
  }
}

TEST(NetreduceHeader, WhatIsWrittenIsReadInEveryLayout) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    Layout layout;
    layout.seals = random.chance(0.5);
    layout.big_endian = random.chance(0.5);
    std::uint32_t at = (layout.seals ? 8 : 0) + static_cast<std::uint32_t>(random.below(4));
    layout.magic_offset = at;
    layout.magic_bytes = 1 + static_cast<std::uint32_t>(random.below(8));
    for (std::byte& byte : layout.magic) byte = static_cast<std::byte>(random.next());
    at += layout.magic_bytes;
    InaHeader header;
    const auto field = [&](bool needed, std::uint32_t most) -> Layout::Field {
      if (!needed && random.chance(0.3)) return {};
      const std::uint32_t offset = at + static_cast<std::uint32_t>(random.below(3));
      const std::uint32_t bytes = 1 + static_cast<std::uint32_t>(random.below(most));
      at = offset + bytes;
      return {offset, bytes};
    };
    const auto value = [&](const Layout::Field& f) { return f.bytes == 0 ? 0 : random.next() >> (64 - 8 * f.bytes); };
    layout.ring = field(true, 4);
    layout.rank = field(true, 4);
    layout.message = field(true, 8);
    layout.packets = field(false, 4);
    layout.signature = field(false, 4);
    layout.dtype = field(false, 2);
    layout.flags = field(false, 2);
    layout.header_bytes = (at + 3) / 4 * 4;
    header.ring = static_cast<std::uint32_t>(value(layout.ring));
    header.rank = static_cast<std::uint32_t>(value(layout.rank));
    header.message = value(layout.message);
    header.packets = static_cast<std::uint32_t>(value(layout.packets));
    header.signature = static_cast<std::uint32_t>(value(layout.signature));
    header.dtype = layout.dtype.bytes == 0 ? DType::float32 : static_cast<DType>(random.below(4));
    header.average = layout.flags.bytes != 0 && random.chance(0.5);
    Bytes payload(layout.header_bytes + 1, std::byte{0xee});
    write_header(layout, payload, header);
    ASSERT_EQ(header, read_header(layout, payload)) << seed;
    ASSERT_EQ(std::byte{0xee}, payload.back());
  }
}

// ---- layouts

TEST(NetreduceLayout, HasNames) {
  EXPECT_STREQ("netsum", parse_layout("netsum").name);
  EXPECT_TRUE(parse_layout("netsum").seals);
  EXPECT_EQ(40U, parse_layout("netsum").header_bytes);
  EXPECT_STREQ("nrtv", parse_layout("nrtv").name);
  EXPECT_FALSE(parse_layout("nrtv").seals);
}

TEST(NetreduceLayout, TextSaysWhatNamesMean) {
  Bytes expected(48), actual(48);
  const Layout nrtv =
      parse_layout("magic=4e527476@0,ring=4:2,rank=6:2,message=8:4,packets=12:4,header=16,endian=little,seals=no");
  EXPECT_STREQ("custom", nrtv.name);
  EXPECT_FALSE(nrtv.seals);
  EXPECT_FALSE(nrtv.big_endian);
  write_header(nrtv_layout, expected, {1, 2, 3, 4});
  write_header(nrtv, actual, {1, 2, 3, 4});
  EXPECT_EQ(expected, actual);
  const Layout ours = parse_layout(
      "seals=yes,header=40,magic=4E536E72@8,dtype=12:1,flags=13:1,packets=14:2,ring=16:4,rank=20:4,message=24:8,signature="
      "32:4");
  EXPECT_TRUE(ours.seals);
  write_header(netsum_layout, expected, some_header);
  write_header(ours, actual, some_header);
  EXPECT_EQ(expected, actual);
}

TEST(NetreduceLayout, SaysWhatIsWrongWithIt) {
  const std::string rest = ",ring=4:2,rank=6:2,message=8:4,header=16";
  const auto refused = [](const std::string& text, const std::string& words) {
    try {
      static_cast<void>(parse_layout(text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::bad_argument, error.code());
      const std::string what = error.what();
      EXPECT_NE(std::string::npos, what.find(words)) << what;
      EXPECT_NE(std::string::npos, what.find("INA header layout '" + text + "'")) << what;
    }
  };
  EXPECT_NO_THROW(static_cast<void>(parse_layout("magic=aa@0" + rest)));
  refused("", "magic is missing");
  refused("other", "'other' is not KEY=VALUE");
  refused("magic=aa@0" + rest + ",colour=1:2", "unknown key 'colour'");
  refused("magic=aa@0,," + rest, "'' is not KEY=VALUE");
  for (const char* magic : {"magic=aa", "magic=@0", "magic=a@0", "magic=xy@0", "magic=a @0", "magic=-1@0",
                            "magic=0102030405060708090a0b0c0d0e0f1011@0"}) {
    refused(magic + rest, "magic must be HEXBYTES@OFFSET");
  }
  refused("magic=aa@" + rest, "'' is not a number up to 128");
  refused("magic=aa@129" + rest, "'129' is not a number up to 128");
  refused("magic=aa@-1" + rest, "'-1' is not a number");
  refused("magic=aa@16" + rest, "the magic lies outside the header");
  refused("magic=aa@0,rank=6:2,message=8:4,header=16", "ring, rank and message are required");
  refused("magic=aa@0,ring=4:2,message=8:4,header=16", "ring, rank and message are required");
  refused("magic=aa@0,ring=4:2,rank=6:2,header=16", "ring, rank and message are required");
  refused("magic=aa@0" + rest + ",packets=12", "a field must be OFFSET:BYTES, not '12'");
  refused("magic=aa@0" + rest + ",packets=12:0", "a field has 1 to 8 bytes");
  refused("magic=aa@0" + rest + ",packets=12:9", "'9' is not a number up to 8");
  refused("magic=aa@0" + rest + ",packets=12:4x", "'4x' is not a number");
  refused("magic=aa@0" + rest + ",packets=12: 4", "' 4' is not a number");
  for (const char* key : {"ring", "rank", "message", "packets", "signature", "dtype", "flags"}) {
    refused("magic=aa@0" + rest + "," + key + "=13:4", "a field lies outside the header");
    refused("seals=yes,magic=aa@8,ring=9:1,rank=10:1,message=11:1,header=16," + std::string(key) + "=7:1", "or in the seal");
  }
  refused("seals=yes,magic=aa@7,ring=9:1,rank=10:1,message=11:1,header=16", "or in the seal");
  refused("magic=aa@0,ring=4:2,rank=6:2,message=8:4", "a field lies outside the header");
  refused("magic=aa@0,ring=4:2,rank=6:2,message=8:4,header=18", "the header is not a multiple of 4 bytes");
  refused("magic=aa@0,ring=4:2,rank=6:2,message=8:4,header=132", "'132' is not a number up to 128");
  refused("magic=aa@0" + rest + ",endian=middle", "endian must be big or little");
  refused("magic=aa@0" + rest + ",seals=maybe", "seals must be yes or no");
}

// ---- message IDs

TEST(NetreduceMessageId, IsTheOneNearestToWhereTheRingIs) {
  EXPECT_EQ(0x1122334455667788U, extend_message(0x1122334455667788, 64, 5));
  EXPECT_EQ(~std::uint64_t{0}, extend_message(~std::uint64_t{0}, 64, 0));
  for (const std::uint32_t bits : {8U, 16U, 24U, 32U}) {
    const std::uint64_t period = std::uint64_t{1} << bits, half = period / 2;
    for (const std::uint64_t near :
         {std::uint64_t{0}, std::uint64_t{1}, half - 1, half, half + 1, period - 1, period, period + 1, 3 * period - 2,
          3 * period + 2, 1000 * period + half, (std::uint64_t{1} << 60) + 3}) {
      for (const std::uint64_t ahead : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5}, half - 1}) {
        EXPECT_EQ(near + ahead, extend_message((near + ahead) % period, bits, near)) << near << " + " << ahead;
        if (ahead > near) continue;
        EXPECT_EQ(near - ahead, extend_message((near - ahead) % period, bits, near)) << near << " - " << ahead;
      }
    }
  }
  // Nothing is before the beginning.
  EXPECT_EQ(0xffffU, extend_message(0xffff, 16, 0));
  EXPECT_EQ(0xfff0U, extend_message(0xfff0, 16, 3));
}

// ---- seals

TEST(NetreduceSeal, IsWhatTheSpecificationSays) {
  // Computed by another program.
  EXPECT_EQ(0x83d5d4c1c2cf0004U, seal_of({0x1122334455667788, 3, 5, 7, 4}));
  EXPECT_EQ(0x5692161d100b0001U, seal_of({0, 0, 0, 0, 1}));
  Bytes payload(10, std::byte{0xee});
  write_seal(payload, {0x1122334455667788, 3, 5, 7, 4});
  EXPECT_EQ(bytes_of({0x04, 0x00, 0xcf, 0xc2, 0xc1, 0xd4, 0xd5, 0x83, 0xee, 0xee}), payload);
  EXPECT_EQ(0x83d5d4c1c2cf0004U, read_seal(payload));
}

TEST(NetreduceSeal, IsNever0) {
  EXPECT_NE(0U, seal_of({}));  // whose digest is 0
  Random random(3);
  for (int i = 0; i < 100'000; ++i) {
    const auto word = [&] { return static_cast<std::uint32_t>(random.below(8)); };
    ASSERT_NE(0U, seal_of({word(), word(), word(), word(), word() << 16}));
  }
}

TEST(NetreduceSeal, EveryFieldChangesIt) {
  Random random(4);
  for (int i = 0; i < 20'000; ++i) {
    const bool small = i % 2 == 0;  // as they are on the wire: neighbours differ in few bits
    Seal seal;
    seal.incarnation = random.next();
    seal.ring = static_cast<std::uint32_t>(small ? random.below(4) : random.next());
    seal.message = small ? random.below(1000) : random.next();
    seal.packet = static_cast<std::uint32_t>(small ? random.below(170) : random.next());
    seal.contributions = static_cast<std::uint32_t>(1 + random.below(1024));
    const std::uint64_t before = seal_of(seal);
    EXPECT_EQ(seal.contributions, before & 0xffff);
    const std::vector<std::function<void(Seal&)>> changes = {
        [&](Seal& s) { s.incarnation ^= std::uint64_t{1} << random.below(64); },
        [&](Seal& s) { s.ring ^= 1U << random.below(32); },
        [&](Seal& s) { s.message ^= std::uint64_t{1} << random.below(64); },
        [&](Seal& s) { s.packet ^= 1U << random.below(32); },
        [&](Seal& s) { s.contributions ^= 1U << random.below(32); },
        [&](Seal& s) { s.message += 1, s.packet = 0; },
        [&](Seal& s) { s.message += s.packet + 1, s.packet = s.packet == 0 ? 1 : 0; },
        [&](Seal& s) { std::swap(s.ring, s.packet), s.packet += 1; },
    };
    for (const auto& change : changes) {
      Seal other = seal;
      change(other);
      ASSERT_NE(before & ~std::uint64_t{0xffff}, seal_of(other) & ~std::uint64_t{0xffff});
    }
  }
}

// All that one ring, and its neighbour of the next life, ever hold at once.
TEST(NetreduceSeal, AllOfARingAreDifferent) {
  std::set<std::uint64_t> seals;
  std::size_t count = 0;
  for (const std::uint64_t incarnation : {0x1234567890abcdefU, 0x1234567890abcdf0U}) {
    for (std::uint32_t ring = 0; ring < 2; ++ring) {
      for (std::uint64_t message = 0; message < 64; ++message) {
        for (std::uint32_t packet = 0; packet < 170; ++packet) {
          for (std::uint32_t contributions = 3; contributions <= 4; ++contributions, ++count) {
            seals.insert(seal_of({incarnation, ring, message, packet, contributions}) >> 16);
          }
        }
      }
    }
  }
  EXPECT_EQ(count, seals.size());
}

}  // namespace
}  // namespace netsum::wire::netreduce
