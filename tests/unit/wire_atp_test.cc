// docs/protocol-atp.md, offset by offset: a change of the format must be a change of this test.
#include "wire/atp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/crc32c.h"
#include "support/atp_packets.h"

namespace netsum::wire::atp {
namespace {

using netsum::testing::AnyPacket;
using netsum::testing::Bytes;
using netsum::testing::gradient_bytes_of;
using netsum::testing::parameter_bytes_of;
using netsum::testing::read_packet;

Common common_of(Type type) {
  Common c;
  c.type = type;
  c.job_epoch = 0x1122334455667788;
  c.sequence = 0x0102030405060708;
  c.rank_epoch = 0xa1b2c3d4;
  c.signature = 0x51525354;
  c.index = 0x61626364;
  return c;
}

const Directions directions{2, {3, 32, 1, 0}, {5, 0x80000001, 1, 0}};

// A sum of int32 with carries: every part that a gradient packet can have.
Bytes wide_gradient() {
  Common c = common_of(Type::gradient);
  c.resend = c.ecn = c.collision = c.overflow = true;
  c.exponent = 154;
  return gradient_bytes_of(c, directions, {1, -2, 0x01020304}, {7, -1, 2, 0});
}

int at(const Bytes& packet, std::size_t offset) {
  return std::to_integer<int>(packet[offset]);
}

Bytes from(std::initializer_list<int> list) {
  Bytes bytes;
  for (const int byte : list) bytes.push_back(static_cast<std::byte>(byte));
  return bytes;
}

Bytes part(const Bytes& packet, std::size_t begin, std::size_t length) {
  return {packet.begin() + static_cast<std::ptrdiff_t>(begin), packet.begin() + static_cast<std::ptrdiff_t>(begin + length)};
}

// The CRC is over everything but itself.
std::uint32_t checksum_of(const Bytes& packet) {
  return crc32c(part(packet, 8, packet.size() - 8), load_le<std::uint32_t>(packet.data()));
}

TEST(WireAtp, AGradientPacketIsByteExact) {
  const Bytes packet = wide_gradient();
  ASSERT_EQ(60U + 3 * 4 + 8, packet.size());
  EXPECT_EQ(from({0xa3, 1, 1 + 2 + 4 + 8 + 16, 0}), part(packet, 0, 4));
  EXPECT_EQ(checksum_of(packet), load_le<std::uint32_t>(packet.data() + 4));
  EXPECT_EQ(from({0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}), part(packet, 8, 8));
  EXPECT_EQ(from({8, 7, 6, 5, 4, 3, 2, 1}), part(packet, 16, 8));
  EXPECT_EQ(from({0xd4, 0xc3, 0xb2, 0xa1}), part(packet, 24, 4));
  EXPECT_EQ(from({0x54, 0x53, 0x52, 0x51}), part(packet, 28, 4));
  EXPECT_EQ(from({0x64, 0x63, 0x62, 0x61}), part(packet, 32, 4));
  EXPECT_EQ(from({3, 0, 2, 154}), part(packet, 36, 4));  // elements, level, exponent
  EXPECT_EQ(from({3, 32, 1, 0}), part(packet, 40, 4));   // fan-ins
  EXPECT_EQ(from({5, 0, 0, 0, 1, 0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0, 0}), part(packet, 44, 16));
  EXPECT_EQ(from({1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 4, 3, 2, 1}), part(packet, 60, 12));
  EXPECT_EQ(from({7, 0, 0xff, 0xff, 2, 0, 0, 0}), part(packet, 72, 8));  // high words, padded
}

// 33 children have two words, 256 have eight, and a level without children has one as in every packet.
const Directions broad_directions = [] {
  Directions broad(1, {33, 0, 256, 1}, {0x80000001, 0, 0, 1});
  broad.insert(0, 32);
  broad.insert(2, 200);
  return broad;
}();

Bytes broad_gradient() {
  return gradient_bytes_of(common_of(Type::gradient), broad_directions, {7}, {-1});
}

TEST(WireAtp, ABroadGradientPacketIsByteExact) {
  const Bytes packet = broad_gradient();
  ASSERT_EQ(48U + 4 * 12 + 4 + 4, packet.size());
  EXPECT_EQ(from({0xa3, 1, 16, 4}), part(packet, 0, 4));
  EXPECT_EQ(checksum_of(packet), load_le<std::uint32_t>(packet.data() + 4));
  EXPECT_EQ(from({1, 0, 1, 0}), part(packet, 36, 4));
  EXPECT_EQ(from({33, 0, 0, 0, 0, 1, 1, 0}), part(packet, 40, 8));
  EXPECT_EQ(from({1, 0, 0, 0x80, 1, 0, 0, 0}), part(packet, 48, 8));
  EXPECT_EQ(Bytes(4), part(packet, 56, 4));
  Bytes third(32);
  third[25] = std::byte{1};
  EXPECT_EQ(third, part(packet, 60, 32));
  EXPECT_EQ(from({1, 0, 0, 0}), part(packet, 92, 4));
  EXPECT_EQ(from({7, 0, 0, 0, 0xff, 0xff, 0, 0}), part(packet, 96, 8));
}

TEST(WireAtp, BroadDirectionsReadBack) {
  const AnyPacket read = read_packet(broad_gradient());
  ASSERT_EQ(ParseError::none, read.error);
  EXPECT_EQ(broad_directions, read.directions);
  EXPECT_EQ(3U, read.directions.count(0));
  EXPECT_EQ(std::nullopt, read.directions.only(0));
  EXPECT_EQ(std::nullopt, read.directions.only(1));
  EXPECT_EQ(200U, read.directions.only(2));
  EXPECT_EQ(0U, read.directions.only(3));
  EXPECT_EQ(33U, read.directions.fan_in()[0]);
  EXPECT_EQ((std::vector<std::int32_t>{7}), read.values);
  EXPECT_EQ((std::vector<std::int16_t>{-1}), read.high);
  Children all = Children::first(33);
  Directions complete = read.directions;
  complete.set(0, all);
  EXPECT_EQ(all, complete.children(0));
  EXPECT_NE(complete, read.directions);
  EXPECT_EQ(complete, read_packet(gradient_bytes_of(common_of(Type::gradient), complete, {7})).directions);
}

TEST(WireAtp, EveryFlagHasItsBit) {
  const auto flags = [](auto set) {
    Common c = common_of(Type::gradient);
    set(c);
    Bytes packet(gradient_header_bytes);
    write_gradient_header(packet, c, {});
    return load_le<std::uint16_t>(packet.data() + 2);
  };
  EXPECT_EQ(0, flags([](Common&) {}));
  EXPECT_EQ(1, flags([](Common& c) { c.resend = true; }));
  EXPECT_EQ(2, flags([](Common& c) { c.ecn = true; }));
  EXPECT_EQ(4, flags([](Common& c) { c.collision = true; }));
  EXPECT_EQ(8, flags([](Common& c) { c.overflow = true; }));
  EXPECT_EQ(16, flags([](Common& c) { c.wide = true; }));
  EXPECT_EQ(32, flags([](Common& c) { c.direct = true; }));
  EXPECT_EQ(64, flags([](Common& c) { c.floats = true; }));
  EXPECT_EQ(128, flags([](Common& c) { c.integers = true; }));
  EXPECT_EQ(256, flags([](Common& c) { c.average = true; }));
}

TEST(WireAtp, AParameterPacketIsByteExact) {
  const Bytes packet = parameter_bytes_of(common_of(Type::parameter), 0x71727374, {-1});
  ASSERT_EQ(48U, packet.size());
  EXPECT_EQ(from({0xa3, 2, 0, 0}), part(packet, 0, 4));
  EXPECT_EQ(checksum_of(packet), load_le<std::uint32_t>(packet.data() + 4));
  EXPECT_EQ(from({1, 0, 0, 0}), part(packet, 36, 4));
  EXPECT_EQ(from({0x74, 0x73, 0x72, 0x71, 0xff, 0xff, 0xff, 0xff}), part(packet, 40, 8));
  Common ahead = common_of(Type::parameter);
  ahead.exponent = 130;
  EXPECT_EQ(130, at(parameter_bytes_of(ahead, 0, {1}), 39));
  EXPECT_EQ(3, at(parameter_bytes_of(common_of(Type::ask)), 1));
  EXPECT_EQ(44U, parameter_bytes_of(common_of(Type::ask)).size());
  EXPECT_EQ(4, at(parameter_bytes_of(common_of(Type::done)), 1));
}

TEST(WireAtp, OtherPacketsAreByteExact) {
  Ranks missing = netsum::testing::ranks_of({0, 9, 1023});
  Bytes waiting(waiting_bytes(missing));
  write_waiting(waiting, {common_of(Type::waiting), missing});
  ASSERT_EQ(40U + 128, waiting.size());
  EXPECT_EQ(from({0xa3, 5, 0, 0}), part(waiting, 0, 4));
  EXPECT_EQ(from({1, 2, 0, 0}), part(waiting, 40, 4));
  EXPECT_EQ(0x80, at(waiting, 167));
  EXPECT_EQ(checksum_of(waiting), load_le<std::uint32_t>(waiting.data() + 4));
  missing.insert(1024);
  waiting.assign(waiting_bytes(missing), std::byte{0xff});
  write_waiting(waiting, {common_of(Type::waiting), missing});
  ASSERT_EQ(40U + 512, waiting.size());
  EXPECT_EQ(from({0x80, 1, 0, 0}), part(waiting, 167, 4));
  EXPECT_EQ(from({0, 0}), part(waiting, 550, 2));

  Bytes mismatch(mismatch_bytes);
  write_mismatch(mismatch, {common_of(Type::mismatch), 0x01020304, 0x05060708, 0x203, 0x104});
  ASSERT_EQ(52U, mismatch.size());
  EXPECT_EQ(6, at(mismatch, 1));
  EXPECT_EQ(from({4, 3, 2, 1, 8, 7, 6, 5, 3, 2, 4, 1}), part(mismatch, 40, 12));
  EXPECT_EQ(checksum_of(mismatch), load_le<std::uint32_t>(mismatch.data() + 4));

  Bytes unknown(common_bytes);
  write_unknown_job(unknown, common_of(Type::gradient));
  EXPECT_EQ(from({0xa3, 7, 0, 0}), part(unknown, 0, 4));
  EXPECT_EQ(from({0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}), part(unknown, 8, 8));
  EXPECT_EQ(Bytes(8), part(unknown, 16, 8));
  EXPECT_EQ(from({0xd4, 0xc3, 0xb2, 0xa1}), part(unknown, 24, 4));
  EXPECT_EQ(Bytes(12), part(unknown, 28, 12));
}

TEST(WireAtp, EveryFieldReadsBack) {
  const AnyPacket gradient = read_packet(wide_gradient());
  ASSERT_EQ(ParseError::none, gradient.error);
  Common expected = common_of(Type::gradient);
  expected.resend = expected.ecn = expected.collision = expected.overflow = expected.wide = true;
  expected.elements = 3;
  expected.exponent = 154;
  EXPECT_EQ(expected, gradient.common);
  EXPECT_EQ(directions, gradient.directions);
  EXPECT_EQ((std::vector<std::int32_t>{1, -2, 0x01020304}), gradient.values);
  EXPECT_EQ((std::vector<std::int16_t>{7, -1, 2}), gradient.high);

  expected = common_of(Type::gradient);
  expected.direct = expected.floats = expected.average = true;
  expected.elements = 1;
  EXPECT_EQ(expected, read_packet(gradient_bytes_of(expected, directions, {3})).common);
  expected.average = expected.floats = false;
  expected.integers = true;
  EXPECT_EQ(expected, read_packet(gradient_bytes_of(expected, directions, {3})).common);

  expected = common_of(Type::parameter);
  expected.ecn = expected.floats = true;
  expected.elements = 2;
  expected.exponent = 1;
  const AnyPacket parameter = read_packet(parameter_bytes_of(expected, 99, {4, 5}));
  ASSERT_EQ(ParseError::none, parameter.error);
  EXPECT_EQ(expected, parameter.common);
  EXPECT_EQ(99U, parameter.next_index);
  EXPECT_EQ((std::vector<std::int32_t>{4, 5}), parameter.values);

  expected = common_of(Type::ask);
  expected.floats = true;
  EXPECT_EQ(expected, read_packet(parameter_bytes_of(expected)).common);

  for (const Ranks& missing :
       {netsum::testing::ranks_of({}), netsum::testing::ranks_of({3, 700}), Ranks::first(max_workers)}) {
    Bytes packet(waiting_bytes(missing));
    write_waiting(packet, {common_of(Type::waiting), missing});
    EXPECT_EQ(common_of(Type::waiting), read_packet(packet).common);
    EXPECT_EQ(missing, read_packet(packet).missing);
  }

  Bytes packet(mismatch_bytes, {});
  write_mismatch(packet, {common_of(Type::mismatch), 1, 2, 3, 1023});
  const MismatchPacket mismatch = read_packet(packet).mismatch;
  EXPECT_EQ(common_of(Type::mismatch), mismatch.common);
  EXPECT_EQ(1U, mismatch.first_signature);
  EXPECT_EQ(2U, mismatch.second_signature);
  EXPECT_EQ(3, mismatch.first_rank);
  EXPECT_EQ(1023, mismatch.second_rank);
}

TEST(WireAtp, EveryFieldIsCompared) {
  const auto differs = [&](auto change) {
    Common other = common_of(Type::gradient);
    EXPECT_EQ(common_of(Type::gradient), other);
    change(other);
    EXPECT_NE(common_of(Type::gradient), other);
  };
  differs([](auto& c) { c.type = Type::done; });
  differs([](auto& c) { c.resend = true; });
  differs([](auto& c) { c.ecn = true; });
  differs([](auto& c) { c.collision = true; });
  differs([](auto& c) { c.overflow = true; });
  differs([](auto& c) { c.wide = true; });
  differs([](auto& c) { c.direct = true; });
  differs([](auto& c) { c.floats = true; });
  differs([](auto& c) { c.average = true; });
  differs([](auto& c) { c.integers = true; });
  differs([](auto& c) { ++c.job_epoch; });
  differs([](auto& c) { ++c.sequence; });
  differs([](auto& c) { ++c.rank_epoch; });
  differs([](auto& c) { ++c.signature; });
  differs([](auto& c) { ++c.index; });
  differs([](auto& c) { ++c.elements; });
  differs([](auto& c) { ++c.exponent; });
  Directions other = directions;
  EXPECT_EQ(directions, other);
  ++other.level;
  EXPECT_NE(directions, other);
  EXPECT_NE(directions, Directions(2, {3, 32, 1, 1}, {5, 0x80000001, 1, 0}));
  EXPECT_NE(directions, Directions(2, {3, 32, 1, 0}, {6, 0x80000001, 1, 0}));
}

// One packet of each type, with values where it has any.
std::vector<Bytes> one_of_each() {
  std::vector<Bytes> packets{wide_gradient(), parameter_bytes_of(common_of(Type::parameter), 1, {5, 6}),
                             parameter_bytes_of(common_of(Type::ask)), parameter_bytes_of(common_of(Type::done))};
  packets.emplace_back(waiting_bytes(netsum::testing::ranks_of({1})));
  write_waiting(packets.back(), {common_of(Type::waiting), netsum::testing::ranks_of({1})});
  packets.emplace_back(mismatch_bytes);
  write_mismatch(packets.back(), {common_of(Type::mismatch), 1, 2, 3, 4});
  packets.emplace_back(common_bytes);
  write_unknown_job(packets.back(), common_of(Type::gradient));
  packets.push_back(broad_gradient());
  return packets;
}

TEST(WireAtp, EveryTruncationAndExtensionIsRefused) {
  for (const Bytes& packet : one_of_each()) {
    ASSERT_EQ(ParseError::none, read_packet(packet).error) << at(packet, 1);
    for (std::size_t length = 0; length <= packet.size() + 8; ++length) {
      if (length == packet.size()) continue;
      Bytes other = packet;
      other.resize(length);
      if (length >= 8) seal(other);  // right in itself
      const ParseError error = read_packet(other).error;
      EXPECT_TRUE(error == ParseError::truncated || error == ParseError::length) << at(packet, 1) << ", " << length;
      EXPECT_EQ(length < common_bytes || (length < gradient_header_bytes && at(packet, 1) == 1) ||
                    (length < parameter_header_bytes && at(packet, 1) >= 2 && at(packet, 1) <= 4),
                error == ParseError::truncated)
          << at(packet, 1) << ", " << length;
    }
  }
}

TEST(WireAtp, AWaitingPacketIsLongForHighRanksAlone) {
  Bytes packet(waiting_bytes(netsum::testing::ranks_of({1024})));
  write_waiting(packet, {common_of(Type::waiting), netsum::testing::ranks_of({1024})});
  EXPECT_EQ(ParseError::none, read_packet(packet).error);
  write_waiting(packet, {common_of(Type::waiting), netsum::testing::ranks_of({1023})});
  EXPECT_EQ(ParseError::length, read_packet(packet).error);
}

TEST(WireAtp, EveryFlippedBitIsCaught) {
  for (const Bytes& packet : one_of_each()) {
    for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
      Bytes other = packet;
      other[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      EXPECT_NE(ParseError::none, read_packet(other).error) << at(packet, 1) << ", " << bit;
    }
  }
}

// A packet that was changed after it was written, with its checksum put right.
template <class Change>
ParseError altered(Bytes packet, Change change) {
  change(packet);
  seal(packet);
  return read_packet(packet).error;
}
template <class Value>
auto put(std::size_t offset, Value value) {
  return [=](Bytes& packet) { store_le(packet.data() + offset, value); };
}
auto put_byte(std::size_t offset, int value) {
  return [=](Bytes& packet) { packet[offset] = static_cast<std::byte>(value); };
}

TEST(WireAtp, AnotherVersionAndOtherTypesAreRefused) {
  EXPECT_EQ(ParseError::version, altered(wide_gradient(), put_byte(0, 0xa1)));
  EXPECT_EQ(ParseError::version, altered(wide_gradient(), put_byte(0, 1)));  // SwitchML's
  EXPECT_EQ(ParseError::type, altered(wide_gradient(), put_byte(1, 0)));
  EXPECT_EQ(ParseError::type, altered(wide_gradient(), put_byte(1, 8)));
  Bytes damaged = wide_gradient();
  damaged[20] ^= std::byte{1};
  EXPECT_EQ(ParseError::checksum, read_packet(damaged).error);
}

// Gradients and parameters of one host. A flipped bit makes none of a packet that has a checksum.
TEST(WireAtp, AnUncheckedPacketHasNoChecksum) {
  for (const Type type : {Type::gradient, Type::parameter}) {
    Common c = common_of(type);
    c.unchecked = true;
    const Bytes packet =
        type == Type::gradient ? gradient_bytes_of(c, directions, {1, 2}) : parameter_bytes_of(c, 3, {1, 2});
    EXPECT_EQ(from({2}), part(packet, 3, 1));
    EXPECT_EQ(from({0, 0, 0, 0}), part(packet, 4, 4));
    const AnyPacket read = read_packet(packet);
    EXPECT_EQ(ParseError::none, read.error);
    EXPECT_TRUE(read.common.unchecked);
    EXPECT_EQ((std::vector<std::int32_t>{1, 2}), read.values);
    Bytes with_checksum = packet;
    put(4, checksum_of(packet))(with_checksum);
    EXPECT_EQ(ParseError::checksum, read_packet(with_checksum).error);
  }
  Bytes flipped = wide_gradient();
  flipped[3] ^= std::byte{2};
  EXPECT_EQ(ParseError::checksum, read_packet(flipped).error);
}

TEST(WireAtp, FieldsThatATypeDoesNotHaveAreRefused) {
  for (const Bytes& packet : one_of_each()) {
    const ParseError with_exponent = at(packet, 1) <= 2 ? ParseError::none : ParseError::field;
    EXPECT_EQ(with_exponent, altered(packet, put_byte(39, 1))) << at(packet, 1);
    EXPECT_EQ(with_exponent, altered(packet, put_byte(39, 254))) << at(packet, 1);
    EXPECT_EQ(ParseError::field, altered(packet, put_byte(39, 255))) << at(packet, 1);  // not of a finite value
    for (std::uint16_t bit = 0; bit < 16; ++bit) {
      const auto flag = static_cast<std::uint16_t>(1U << bit);
      const std::uint16_t allowed[] = {0, 0x7ff, 2 + 64 + 512, 64, 0, 0, 0, 0};
      if ((allowed[at(packet, 1)] & flag) != 0) continue;
      EXPECT_EQ(ParseError::field, altered(packet, put(2, flag))) << at(packet, 1) << ", flag " << bit;
    }
    if (at(packet, 1) > 1) {
      EXPECT_EQ(ParseError::field, altered(packet, put_byte(38, 1))) << at(packet, 1);  // level
    }
    if (at(packet, 1) > 2) {
      EXPECT_EQ(ParseError::field, altered(packet, put_byte(36, 1))) << at(packet, 1);  // elements
    }
  }
  // An unknown job says no more than whom it is for.
  EXPECT_EQ(ParseError::field, altered(one_of_each()[6], put_byte(16, 1)));  // sequence
  EXPECT_EQ(ParseError::field, altered(one_of_each()[6], put_byte(28, 1)));  // signature
  EXPECT_EQ(ParseError::field, altered(one_of_each()[6], put_byte(32, 1)));  // index
  EXPECT_EQ(ParseError::field, altered(one_of_each()[2], put_byte(40, 1)));  // next_index of an ask
  EXPECT_EQ(ParseError::field, altered(one_of_each()[3], put_byte(40, 1)));  // of a done
}

TEST(WireAtp, FieldsBeyondTheirRangeAreRefused) {
  EXPECT_EQ(ParseError::none, altered(wide_gradient(), [](Bytes&) {}));
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put_byte(38, max_levels)));
  EXPECT_EQ(ParseError::none, altered(wide_gradient(), put_byte(38, max_levels - 1)));
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put_byte(41, 33)));                      // fan-in
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put_byte(40, 2)));                       // below the bitmap's bits
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put(44, std::uint32_t{8})));             // a fourth child of three
  EXPECT_EQ(ParseError::none, altered(wide_gradient(), put(48, std::uint32_t{0xffffffff})));     // all of 32
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put(56, std::uint32_t{1})));             // of a level with none
  EXPECT_EQ(ParseError::length, altered(wide_gradient(), put(36, std::uint16_t{5})));            // elements
  EXPECT_EQ(ParseError::length, altered(wide_gradient(), put(36, std::uint16_t{10880})));        // the most
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put(36, std::uint16_t{10881})));         // one more
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put_byte(78, 1)));                       // padding
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put_byte(79, 1)));                       // padding
  EXPECT_EQ(ParseError::field, altered(one_of_each()[1], put(36, std::uint16_t{10881})));        // elements of a result
  EXPECT_EQ(ParseError::field, altered(one_of_each()[5], put(48, std::uint16_t{max_workers})));  // ranks
  EXPECT_EQ(ParseError::field, altered(one_of_each()[5], put(50, std::uint16_t{max_workers})));
}

// There is one way to write directions: broad only where a word does not do, and as long as the fan-ins say.
TEST(WireAtp, BroadDirectionsBeyondTheirRangeAreRefused) {
  EXPECT_EQ(ParseError::none, altered(broad_gradient(), [](Bytes&) {}));
  EXPECT_EQ(ParseError::field, altered(broad_gradient(), put(44, std::uint16_t{257})));           // fan-in
  EXPECT_EQ(ParseError::field, altered(broad_gradient(), put(44, std::uint16_t{0xffff})));        // fan-in
  EXPECT_EQ(ParseError::length, altered(broad_gradient(), put(44, std::uint16_t{224})));          // of a word less
  EXPECT_EQ(ParseError::length, altered(broad_gradient(), put(42, std::uint16_t{33})));           // of a word more
  EXPECT_EQ(ParseError::field, altered(broad_gradient(), put(52, std::uint32_t{2})));             // child 33 of 33
  EXPECT_EQ(ParseError::none, altered(broad_gradient(), put(60 + 28, std::uint32_t{1U << 31})));  // child 255 of 256
  EXPECT_EQ(ParseError::field, altered(broad_gradient(), put(56, std::uint32_t{1})));             // of a level with none
  EXPECT_EQ(ParseError::length, altered(broad_gradient(), put_byte(3, 0)));                       // not said to be broad
  EXPECT_EQ(ParseError::field, altered(wide_gradient(), put_byte(3, 4)));                         // said, and not broad
  EXPECT_EQ(ParseError::field, altered(broad_gradient(), [](Bytes& packet) {
              store_le(packet.data() + 40, std::uint16_t{32});
              store_le(packet.data() + 44, std::uint16_t{32});
              packet.resize(48 + 4 * 4 + 8);
            }));
}

TEST(WireAtp, FlagsThatDoNotGoTogetherAreRefused) {
  const auto flags = [](auto set, std::vector<std::int32_t> values = {1}, std::vector<std::int16_t> high = {}) {
    Common c = common_of(Type::gradient);
    set(c);
    return read_packet(gradient_bytes_of(c, directions, values, high)).error;
  };
  EXPECT_EQ(ParseError::none, flags([](Common&) {}));
  EXPECT_EQ(ParseError::none, flags([](Common& c) { c.floats = c.direct = true; }));
  EXPECT_EQ(ParseError::none, flags([](Common& c) { c.floats = c.direct = c.resend = c.average = true; }));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.floats = true; }));  // to the parameter server alone
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.floats = c.direct = c.overflow = true; }));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.floats = c.direct = c.resend = c.collision = true; }));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.floats = c.direct = true; }, {1}, {1, 0}));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.average = true; }));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.average = c.direct = true; }));
  EXPECT_EQ(ParseError::none, flags([](Common& c) { c.integers = true; }));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.integers = c.floats = c.direct = true; }));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.integers = c.overflow = true; }));
  EXPECT_EQ(ParseError::field, flags([](Common& c) {
              c.integers = true;
              c.exponent = 1;
            }));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.integers = true; }, {1}, {1, 0}));
  EXPECT_EQ(ParseError::field, flags([](Common& c) { c.collision = true; }));
  EXPECT_EQ(ParseError::none, flags([](Common& c) { c.collision = c.resend = true; }));
  Common empty = common_of(Type::gradient);
  empty.wide = true;
  Bytes packet(gradient_bytes(empty, directions));
  write_gradient_header(packet, empty, directions);
  seal(packet);
  EXPECT_EQ(ParseError::field, read_packet(packet).error);  // wide without a value
}

TEST(WireAtp, HighWordsAreWholeInts) {
  EXPECT_EQ(0U, high_bytes(0));
  EXPECT_EQ(4U, high_bytes(1));
  EXPECT_EQ(4U, high_bytes(2));
  EXPECT_EQ(8U, high_bytes(3));
  // The longest packet fits one datagram over IPv6 without its extension for longer ones.
  Common longest;
  longest.elements = max_packet_elements;
  longest.wide = true;
  EXPECT_EQ(65340U, gradient_bytes(longest, directions));
  EXPECT_EQ(65456U, gradient_bytes(longest, {0, {256, 256, 256, 256}}));
  EXPECT_EQ(176U, longest_header_bytes(max_workers));
}

// One path's fan-ins, for which the longest header of so many ranks has room.
TEST(WireAtp, NoHeaderIsLongerThanTheLongestOfSoManyRanks) {
  EXPECT_EQ(gradient_header_bytes, longest_header_bytes(32));
  EXPECT_EQ(header_bytes({0, {33, 1, 1, 1}}), longest_header_bytes(33));
  EXPECT_EQ(header_bytes({0, {256, 1, 1, 1}}), longest_header_bytes(256));
  EXPECT_EQ(header_bytes({0, {33, 33, 33, 33}}), longest_header_bytes(33 + 3 * 32));
  EXPECT_EQ(header_bytes({0, {256, 256, 256, 256}}), longest_header_bytes(256 + 3 * 255));
}

}  // namespace
}  // namespace netsum::wire::atp
