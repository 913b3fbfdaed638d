#include "wire/epochs.h"
#include "wire/switchml.h"
#include "wire/switchml_apart.h"

#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/wire_types.h"
#include "support/virtual_network.h"

namespace netsum::wire::switchml {
namespace {

using netsum::testing::Random;

const Common common{Type::contribution, 0x103, 0x1122334455667788, 0xa1b2c3d4};

std::vector<std::byte> chunk_packet(const ChunkHeader& header, Common c = common) {
  std::vector<std::byte> packet(chunk_packet_bytes(header), std::byte{7});
  write_chunk_header(packet, c, header);
  seal(packet);
  return packet;
}

ChunkHeader full_header() {
  return {.operation = 0x0102030405060708,
          .chunk = 9,
          .signature = 10,
          .slot = 11,
          .version = 1,
          .masks = true,
          .exponents = 3,
          .elements = 13,
          .ahead_operation = 1,
          .ahead_chunk = 15};
}

// docs/protocol-switchml.md, offset by offset: a change of the format must be a change of this test.
TEST(ParseErrors, HaveNames) {
  EXPECT_STREQ("none", to_string(ParseError::none));
  EXPECT_STREQ("checksum", to_string(ParseError::checksum));
  EXPECT_STREQ("field", to_string(ParseError::field));
}

TEST(WireSwitchml, EveryFieldIsCompared) {
  const ChunkHeader header{1, 2, 3, 4, 1, true, 5, 6, 7, 8};
  const auto differs = [&](auto change) {
    ChunkHeader other = header;
    EXPECT_EQ(header, other);
    change(other);
    EXPECT_NE(header, other);
  };
  differs([](auto& h) { ++h.operation; });
  differs([](auto& h) { ++h.chunk; });
  differs([](auto& h) { ++h.signature; });
  differs([](auto& h) { ++h.slot; });
  differs([](auto& h) { h.version = 0; });
  differs([](auto& h) { h.masks = false; });
  differs([](auto& h) { ++h.exponents; });
  differs([](auto& h) { ++h.elements; });
  differs([](auto& h) { ++h.ahead_operation; });
  differs([](auto& h) { ++h.ahead_chunk; });
  differs([](auto& h) { h.dtype = DType::float16; });
  differs([](auto& h) { h.op = ReduceOp::avg; });
  differs([](auto& h) { h.acknowledge_only = true; });
  differs([](auto& h) { h.later = true; });
  differs([](auto& h) { h.due = true; });
  const Common first{Type::result, 1, 2, 3};
  EXPECT_EQ(first, (Common{Type::result, 1, 2, 3}));
  EXPECT_NE(first, (Common{Type::waiting, 1, 2, 3}));
  EXPECT_NE(first, (Common{Type::result, 2, 2, 3}));
  EXPECT_NE(first, (Common{Type::result, 1, 3, 3}));
  EXPECT_NE(first, (Common{Type::result, 1, 2, 4}));
  EXPECT_NE(first, (Common{Type::result, 1, 2, 3, false}));
}

TEST(WireSwitchml, ChunkPacketIsByteExact) {
  const auto packet = chunk_packet(full_header());
  const auto at = [&](std::size_t offset) { return std::to_integer<int>(packet[offset]); };
  ASSERT_EQ(48U + 4 + 13 * 4 + 2 * 2, packet.size());
  EXPECT_EQ(3, at(0));
  EXPECT_EQ(1 | 1 << 4, at(1));
  EXPECT_EQ(0x103U, load_le<std::uint16_t>(packet.data() + 2));
  EXPECT_EQ(0x1122334455667788U, load_le<std::uint64_t>(packet.data() + 8));
  EXPECT_EQ(0xa1b2c3d4U, load_le<std::uint32_t>(packet.data() + 16));
  EXPECT_EQ(9U, load_le<std::uint32_t>(packet.data() + 20));
  EXPECT_EQ(0x0102030405060708U, load_le<std::uint64_t>(packet.data() + 24));
  EXPECT_EQ(10U, load_le<std::uint32_t>(packet.data() + 32));
  EXPECT_EQ(15U, load_le<std::uint32_t>(packet.data() + 36));
  EXPECT_EQ(1, at(40));
  EXPECT_EQ(0, at(41));  // a sum of int32
  EXPECT_EQ(11U, load_le<std::uint16_t>(packet.data() + 42));
  EXPECT_EQ(13U, load_le<std::uint16_t>(packet.data() + 44));
  EXPECT_EQ(3, at(46));
  EXPECT_EQ(3, at(47));
  EXPECT_EQ(0, at(48 + 3));  // padding
}

// The type is in the low bits of a byte, the operation in the high ones, and so many bytes each follow.
TEST(WireSwitchml, ChunkPacketsOfEveryTypeAreByteExactAndReadBack) {
  for (const auto& [dtype, op, values] : {std::tuple{DType::float16, ReduceOp::sum, 0x01},
                                          {DType::float16, ReduceOp::avg, 0x11},
                                          {DType::bfloat16, ReduceOp::sum, 0x02},
                                          {DType::bfloat16, ReduceOp::product, 0x42},
                                          {DType::float32, ReduceOp::avg, 0x13},
                                          {DType::float64, ReduceOp::product, 0x44},
                                          {DType::int64, ReduceOp::min, 0x25},
                                          {DType::int16, ReduceOp::max, 0x36},
                                          {DType::int8, ReduceOp::bit_and, 0x57},
                                          {DType::uint8, ReduceOp::bit_or, 0x68},
                                          {DType::int32, ReduceOp::bit_xor, 0x70}}) {
    ChunkHeader header = full_header();
    header.masks = false;
    header.dtype = dtype;
    header.op = op;
    header.acknowledge_only = true;
    const auto packet = chunk_packet(header);
    ASSERT_EQ(48U + 4 + 13 * bytes_of(dtype), packet.size());
    EXPECT_EQ(values, std::to_integer<int>(packet[41]));
    EXPECT_EQ(1 | 4, std::to_integer<int>(packet[47]));
    Common read{};
    ChunkPacket chunk{};
    ASSERT_EQ(ParseError::none, parse_common(packet, read));
    ASSERT_EQ(ParseError::none, parse_chunk(packet, read, chunk));
    EXPECT_EQ(header, chunk.header);
    EXPECT_EQ(13 * bytes_of(dtype), chunk.payload.size());
    EXPECT_TRUE(chunk.masks.empty());
  }
}

TEST(WireSwitchml, ChunkPacketReadsBack) {
  const auto packet = chunk_packet(full_header());
  Common read{};
  ChunkPacket chunk{};
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  EXPECT_EQ(common, read);
  ASSERT_EQ(ParseError::none, parse_chunk(packet, read, chunk));
  EXPECT_EQ(full_header(), chunk.header);
  EXPECT_EQ(3U, chunk.exponents.size());
  EXPECT_EQ(52U, chunk.payload.size());
  EXPECT_EQ(4U, chunk.masks.size());
  EXPECT_EQ(packet.data() + packet.size(), chunk.masks.data() + chunk.masks.size());
}

TEST(WireSwitchml, EveryTruncationAndExtensionIsRefused) {
  const auto packet = chunk_packet(full_header());
  for (std::size_t length = 0; length <= packet.size() + 8; ++length) {
    if (length == packet.size()) continue;
    std::vector<std::byte> other(packet.begin(),
                                 packet.begin() + static_cast<std::ptrdiff_t>(std::min(length, packet.size())));
    other.resize(length);
    if (length >= 8) seal(other);  // right in itself
    Common read{};
    ChunkPacket chunk{};
    const auto error = parse_common(other, read);
    if (error != ParseError::none) continue;
    EXPECT_NE(ParseError::none, parse_chunk(other, read, chunk)) << length;
  }
}

TEST(WireSwitchml, EveryFlippedBitIsCaught) {
  const auto packet = chunk_packet(full_header());
  for (std::size_t bit = 0; bit < packet.size() * 8; ++bit) {
    auto other = packet;
    other[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    Common read{};
    EXPECT_NE(ParseError::none, parse_common(other, read)) << bit;
  }
}

TEST(WireSwitchml, FieldsBeyondTheirRangeAreRefused) {
  const auto refuses = [](auto change) {
    auto packet = chunk_packet(full_header());
    change(packet);
    seal(packet);
    Common read{};
    ChunkPacket chunk{};
    const auto error = parse_common(packet, read);
    return error != ParseError::none ? error : parse_chunk(packet, read, chunk);
  };
  EXPECT_EQ(ParseError::none, refuses([](auto&) {}));
  EXPECT_EQ(ParseError::version, refuses([](auto& p) { p[0] = std::byte{1}; }));
  EXPECT_EQ(ParseError::type, refuses([](auto& p) { p[1] = std::byte{0x10}; }));
  EXPECT_EQ(ParseError::type, refuses([](auto& p) { p[1] = std::byte{0x1f}; }));
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { store_le(p.data() + 2, std::uint16_t{max_workers}); }));
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[47] = std::byte{3 | 32}; }));    // a reserved flag
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[47] = std::byte{3 | 8}; }));     // values, and to be told later
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[41] = std::byte{9}; }));         // a type that there is none of
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[41] = std::byte{0x80}; }));      // an operation that there is none of
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[41] = std::byte{0x10}; }));      // an average of int32
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[41] = std::byte{0x20}; }));      // masks of a minimum
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[41] = std::byte{0x23}; }));      // a minimum of floats
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[48] = std::byte{255}; }));       // exponent
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[51] = std::byte{1}; }));         // padding
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[40] = std::byte{no_ahead}; }));  // exponents of nothing
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { store_le(p.data() + 44, std::uint16_t{20000}); }));  // elements
  EXPECT_EQ(ParseError::field, refuses([](auto& p) { p[46] = std::byte{200}; }));                         // exponents
  EXPECT_EQ(ParseError::field,
            refuses([](auto& p) { p[1] = static_cast<std::byte>(0x10 | static_cast<int>(Type::exponent_result)); }));
  EXPECT_EQ(ParseError::field,  // with values
            refuses([](auto& p) { p[1] = static_cast<std::byte>(0x10 | static_cast<int>(Type::acknowledgement)); }));
  EXPECT_EQ(ParseError::field, refuses([](auto& p) {  // a result that wants no values back
              p[1] = static_cast<std::byte>(0x10 | static_cast<int>(Type::result));
              p[47] = std::byte{3 | 4};
            }));
}

// On loopback: the type's byte says so, and the checksum's place holds 0.
TEST(WireSwitchml, PacketsAboutChunksMayDoWithoutAChecksum) {
  Common unchecked = common;
  unchecked.checked = false;
  std::vector<std::byte> packet(chunk_packet_bytes(full_header()));
  write_chunk_header(packet, unchecked, full_header());
  seal(packet);
  EXPECT_EQ(0U, load_le<std::uint32_t>(packet.data() + 4));
  Common read{};
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  EXPECT_EQ(unchecked, read);
  packet[4] = std::byte{1};
  EXPECT_EQ(ParseError::checksum, parse_common(packet, read));
  packet[4] = std::byte{0};
  packet[1] = static_cast<std::byte>(Type::waiting);
  EXPECT_EQ(ParseError::field, parse_common(packet, read));
}

TEST(WireSwitchml, NoFlippedBitMakesAPacketOneWithoutAChecksum) {
  auto packet = chunk_packet(full_header());
  ASSERT_NE(0U, load_le<std::uint32_t>(packet.data() + 4));
  packet[1] ^= std::byte{1 << 4};
  Common read{};
  EXPECT_EQ(ParseError::checksum, parse_common(packet, read));
}

TEST(WireSwitchml, OnlyPacketsUpstreamNameTheirSender) {
  for (int type = 1; type <= 13; ++type) {
    auto packet = chunk_packet({.operation = 1}, {static_cast<Type>(type), 3, 1, 2});
    Common read{};
    EXPECT_EQ(type <= 2 || type == 10 || type == 12 ? ParseError::none : ParseError::field, parse_common(packet, read))
        << type;
    packet[2] = packet[3] = std::byte{0};
    seal(packet);
    EXPECT_EQ(ParseError::none, parse_common(packet, read)) << type;
  }
}

// The exponent-only round, masks without elements, exponents without a chunk that they are for.
TEST(WireSwitchml, PartsThatDoNotGoTogetherAreRefused) {
  const auto parsed = [](const ChunkHeader& header, Type type = Type::contribution) {
    const auto packet = chunk_packet(header, {type, 0, 1, 2});
    Common read{};
    ChunkPacket chunk{};
    EXPECT_EQ(ParseError::none, parse_common(packet, read));
    return parse_chunk(packet, read, chunk);
  };
  EXPECT_EQ(ParseError::none, parsed({}));
  EXPECT_EQ(ParseError::none, parsed({.elements = 1}));
  EXPECT_EQ(ParseError::none, parsed({}, Type::exponent_contribution));
  EXPECT_EQ(ParseError::field, parsed({.elements = 1}, Type::exponent_contribution));
  EXPECT_EQ(ParseError::field, parsed({.elements = 1}, Type::exponent_result));
  EXPECT_EQ(ParseError::field, parsed({.masks = true}));
  EXPECT_EQ(ParseError::none, parsed({.elements = 1, .dtype = DType::float16}));
  EXPECT_EQ(ParseError::field, parsed({.dtype = DType::float16}));  // no rank has none
  EXPECT_EQ(ParseError::field, parsed({.masks = true, .elements = 1, .dtype = DType::bfloat16}));
  EXPECT_EQ(ParseError::field, parsed({.dtype = DType::float16}, Type::exponent_contribution));
  EXPECT_EQ(ParseError::none, parsed({.elements = max_packet_elements + check_words}));
  EXPECT_EQ(ParseError::field, parsed({.elements = max_packet_elements + check_words + 1}));
  EXPECT_EQ(ParseError::field, parsed({.elements = max_packet_elements + 1, .op = ReduceOp::max}));
  EXPECT_EQ(ParseError::none, parsed({.elements = 2 * max_packet_elements, .dtype = DType::bfloat16}));
  EXPECT_EQ(ParseError::field, parsed({.elements = 2 * max_packet_elements + 1, .dtype = DType::bfloat16}));
  EXPECT_EQ(ParseError::none, parsed({.elements = max_packet_elements, .dtype = DType::float32}));
  EXPECT_EQ(ParseError::field, parsed({.elements = max_packet_elements + 1, .dtype = DType::float32}));
  EXPECT_EQ(ParseError::field, parsed({.masks = true, .elements = 1, .dtype = DType::float32}));
  EXPECT_EQ(ParseError::field, parsed({.ahead_operation = 0}));
  EXPECT_EQ(ParseError::none, parsed({.acknowledge_only = true, .later = true}));
  EXPECT_EQ(ParseError::field, parsed({.later = true}));
  EXPECT_EQ(ParseError::none, parsed({.due = true}));
  EXPECT_EQ(ParseError::field, parsed({.acknowledge_only = true, .due = true}));
  EXPECT_EQ(ParseError::field, parsed({.due = true}, Type::exponent_contribution));
}

Run three_chunks() {
  ChunkHeader header{.operation = 0x0102030405060708, .chunk = 9, .signature = 10, .slot = 11};
  header.exponents = 2;
  header.ahead_operation = 1;
  header.ahead_chunk = 15;
  header.acknowledge_only = header.later = true;
  Run run;
  EXPECT_TRUE(run.take(header));
  for (const std::uint32_t more : {2U, 13U}) {
    header.chunk = 9 + more;
    header.slot = static_cast<std::uint16_t>(11 + more);
    header.ahead_chunk = 15 + more;
    header.version = more == 13;
    EXPECT_TRUE(run.take(header));
  }
  return run;
}

std::vector<std::byte> run_packet(const Run& run, Common c = {Type::empty_contributions, 3, 1, 2}) {
  std::vector<std::byte> packet(run_bytes(run), std::byte{7});
  write_run_header(packet, c, run);
  seal(packet);
  return packet;
}

TEST(WireSwitchml, RunsAreByteExactAndReadBack) {
  const auto packet = run_packet(three_chunks());
  ASSERT_EQ(48U + 4 + 8, packet.size());
  EXPECT_EQ(12 | 1 << 4, std::to_integer<int>(packet[1]));
  EXPECT_EQ(0x2005U, load_le<std::uint16_t>(packet.data() + 44));  // members
  EXPECT_EQ(2, std::to_integer<int>(packet[46]));                  // exponents of each
  EXPECT_EQ(4 | 8, std::to_integer<int>(packet[47]));
  EXPECT_EQ(0x2000U, load_le<std::uint32_t>(packet.data() + 48));  // versions, and zeros
  EXPECT_EQ(0x0707, load_le<std::uint16_t>(packet.data() + 56));
  EXPECT_EQ(0, load_le<std::uint16_t>(packet.data() + 58));  // padding
  Common read{};
  RunPacket all;
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  ASSERT_EQ(ParseError::none, parse_run(packet, read, all));
  std::vector<std::uint32_t> chunks, slots, ahead, versions;
  const std::byte* exponents = packet.data() + 52;
  all.for_each([&](const ChunkPacket& member) {
    chunks.push_back(member.header.chunk);
    slots.push_back(member.header.slot);
    ahead.push_back(member.header.ahead_chunk);
    versions.push_back(member.header.version);
    EXPECT_EQ(Type::contribution, member.common.type);
    EXPECT_TRUE(member.header.later);
    EXPECT_EQ(exponents, member.exponents.data());
    exponents += member.exponents.size();
  });
  EXPECT_EQ((std::vector<std::uint32_t>{9, 11, 22}), chunks);
  EXPECT_EQ((std::vector<std::uint32_t>{11, 13, 24}), slots);
  EXPECT_EQ((std::vector<std::uint32_t>{15, 17, 28}), ahead);
  EXPECT_EQ((std::vector<std::uint32_t>{0, 0, 1}), versions);
  // Taken apart, they are what would have been sent alone.
  for (const auto& member : apart(all)) {
    ChunkPacket chunk;
    ASSERT_EQ(ParseError::none, parse_common(member, read));
    EXPECT_EQ(ParseError::none, parse_chunk(member, read, chunk));
  }
}

TEST(WireSwitchml, RunsTakeWhatFollowsFromTheFirst) {
  const auto takes = [](auto change) {
    auto run = three_chunks();
    ChunkHeader next = run.member(14);
    change(next);
    return run.take(next);
  };
  EXPECT_TRUE(takes([](auto&) {}));
  EXPECT_TRUE(takes([](auto& h) { h.version = 1; }));
  EXPECT_FALSE(takes([](auto& h) { h.chunk += 2, h.slot += 2, h.ahead_chunk += 2; }));  // beyond 16
  EXPECT_FALSE(takes([](auto& h) { h.slot -= 16; }));                                   // behind the window's end
  EXPECT_FALSE(takes([](auto& h) { ++h.operation; }));
  EXPECT_FALSE(takes([](auto& h) { ++h.signature; }));
  EXPECT_FALSE(takes([](auto& h) { ++h.ahead_operation; }));
  EXPECT_FALSE(takes([](auto& h) { ++h.ahead_chunk; }));
  EXPECT_FALSE(takes([](auto& h) { ++h.exponents; }));
  EXPECT_FALSE(takes([](auto& h) { h.later = false; }));
}

TEST(WireSwitchml, RunsBeyondTheirRangeAreRefused) {
  const auto parsed = [](auto change, Type type = Type::empty_contributions) {
    auto run = three_chunks();
    if (type != Type::empty_contributions) run.first.acknowledge_only = run.first.later = false;
    auto packet = run_packet(run, {type, 0, 1, 2});
    change(packet);
    seal(packet);
    Common read{};
    RunPacket all;
    EXPECT_EQ(ParseError::none, parse_common(packet, read));
    return parse_run(packet, read, all);
  };
  EXPECT_EQ(ParseError::none, parsed([](auto&) {}));
  EXPECT_EQ(ParseError::none, parsed([](auto&) {}, Type::acknowledgements));
  EXPECT_EQ(ParseError::type, parsed([](auto&) {}, Type::contribution));
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[47] = std::byte{4}; }, Type::acknowledgements));
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[44] = std::byte{4}; }));    // not the first
  EXPECT_EQ(ParseError::length, parsed([](auto& p) { p[44] = std::byte{15}; }));  // two more
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[48] = std::byte{2}; }));    // a version of none
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[50] = std::byte{1}; }));    // reserved
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[47] |= std::byte{1}; }));   // version
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[47] |= std::byte{2}; }));   // masks
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[41] = std::byte{1}; }));    // no rank is without floats
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[41] = std::byte{9}; }));    // nor without 8-bit blocks
  EXPECT_EQ(ParseError::none, parsed([](auto& p) { p[41] = std::byte{1}; }, Type::acknowledgements));
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[42] = p[43] = std::byte{0xff}; }));  // slots
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[57] = std::byte{255}; }));           // exponent
  EXPECT_EQ(ParseError::field, parsed([](auto& p) { p[58] = std::byte{1}; }));             // padding
  EXPECT_EQ(ParseError::length, parsed([](auto& p) { p.resize(p.size() + 4); }));
  EXPECT_EQ(ParseError::length, parsed([](auto& p) { p.resize(p.size() - 4); }));
  EXPECT_EQ(ParseError::truncated, parsed([](auto& p) { p.resize(51); }));
}

TEST(WireSwitchml, PartsOfSumsAreWhatWasWritten) {
  const std::vector<std::byte> exponents{std::byte{7}};
  const auto written = [&](DType dtype, std::uint16_t elements, std::uint16_t place) {
    SumPart part{{{Type::sum_part, 3, 1, 2}, {}, exponents, {}, {}}, place, 4, 5};
    ChunkHeader& header = part.chunk.header;
    header.dtype = dtype;
    header.elements = elements;
    header.exponents = 1;
    header.ahead_operation = 1;
    std::vector<std::byte> packet(sum_part_bytes(header, place), std::byte{0x11});
    write_sum_part_header(packet, part);
    seal(packet);
    return packet;
  };
  const auto parsed = [](std::vector<std::byte> packet, auto change) {
    change(packet);
    seal(packet);
    Common read{};
    SumPart part;
    EXPECT_EQ(ParseError::none, parse_common(packet, read));
    return std::pair(parse_sum_part(packet, read, part), part);
  };
  const auto as_it_is = [](auto&) {};
  const auto [error, part] = parsed(written(DType::bfloat16, 9, 273), as_it_is);
  EXPECT_EQ(ParseError::none, error);
  EXPECT_EQ(std::tuple(273, 4, 5), std::tuple(part.place, part.part, part.parts));
  EXPECT_EQ(std::pair(std::size_t{1}, std::size_t{18}), std::pair(part.chunk.exponents.size(), part.chunk.payload.size()));
  EXPECT_EQ(std::size_t{64 + 2}, parsed(written(netsum::block8, 68, 0), as_it_is).second.chunk.payload.size());
  EXPECT_EQ(std::size_t{64 + 4}, parsed(written(netsum::block4, 36, 0), as_it_is).second.chunk.payload.size());
  EXPECT_EQ(std::size_t{3 * 2}, parsed(written(DType::float16, 9, 0xffff), as_it_is).second.chunk.payload.size());
  const auto refused = [&](auto change) { return parsed(written(DType::bfloat16, 9, 16), change).first; };
  EXPECT_EQ(ParseError::type, refused([](auto& p) { p[1] = std::byte{0x11}; }));                        // a contribution
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[41] = std::byte{4}; }));                         // float64
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[41] = std::byte{0x42}; }));                      // a product
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[44] = std::byte{0}; }));                         // of nothing
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[47] = std::byte{2}; }));                         // masks of int32
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[48] = std::byte{18}, p[49] = std::byte{1}; }));  // 274
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[50] = std::byte{5}; }));                         // behind the last
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[51] = std::byte{38}; }));
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[52] = std::byte{255}; }));  // an exponent
  EXPECT_EQ(ParseError::field, refused([](auto& p) { p[53] = std::byte{1}; }));    // padding
  EXPECT_EQ(ParseError::length, refused([](auto& p) { p.pop_back(); }));
  EXPECT_EQ(ParseError::truncated, refused([](auto& p) { p.resize(51); }));
}

TEST(WireSwitchml, OtherPacketsAreRefusedUnlessExact) {
  Common read{};
  const auto altered = [&](std::vector<std::byte> packet, std::size_t at) {
    packet[at] ^= std::byte{2};
    seal(packet);
    EXPECT_EQ(ParseError::none, parse_common(packet, read));
    return packet;
  };
  const auto longer = [](std::vector<std::byte> packet, std::ptrdiff_t by) {
    packet.resize(static_cast<std::size_t>(std::ssize(packet) + by));
    return packet;
  };
  std::vector<std::byte> packet(waiting_bytes(Ranks::first(3)));
  WaitingPacket waiting{};
  write_waiting(packet, {{Type::waiting, 0, 5, 6}, 7, 8, 9, true, Ranks::first(3)});
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  EXPECT_EQ(ParseError::field, parse_waiting(altered(packet, 34), read, waiting));  // neither values nor exponents
  EXPECT_EQ(ParseError::field, parse_waiting(altered(packet, 35), read, waiting));  // reserved
  EXPECT_EQ(ParseError::length, parse_waiting(longer(packet, 1), read, waiting));
  EXPECT_EQ(ParseError::length, parse_waiting(longer(packet, -1), read, waiting));
  EXPECT_EQ(ParseError::length, parse_waiting(longer(packet, -9), read, waiting));
  EXPECT_EQ(ParseError::length, parse_waiting(longer(packet, 8), read, waiting));  // a word that no rank needs
  EXPECT_EQ(ParseError::length, parse_waiting(longer(packet, max_workers / 8), read, waiting));

  packet.assign(mismatch_bytes, {});
  MismatchPacket mismatch{};
  write_mismatch(packet, {{Type::mismatch, 0, 5, 6}, 7, 8, 9, 10, 1, 2});
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  packet[41] = std::byte{max_workers >> 8};
  EXPECT_EQ(ParseError::field, parse_mismatch(packet, read, mismatch));
  packet[41] = std::byte{0};
  packet[43] = std::byte{max_workers >> 8};
  EXPECT_EQ(ParseError::field, parse_mismatch(packet, read, mismatch));
  EXPECT_EQ(ParseError::length, parse_mismatch(longer(packet, 1), read, mismatch));

  packet.assign(100, {});
  ProbePacket probe{};
  write_probe(packet, {{Type::probe, 0, 0, 0}, 42});
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  EXPECT_EQ(ParseError::field, parse_probe(altered(packet, 99), read, probe));  // padding
  EXPECT_EQ(ParseError::truncated, parse_probe(longer(packet, -69), read, probe));
  write_probe(packet, {{Type::probe_reply, 0, 0, 0}, 42});
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  EXPECT_EQ(ParseError::length, parse_probe(packet, read, probe));  // a reply is not padded
  EXPECT_EQ(ParseError::none, parse_probe(longer(packet, -68), read, probe));
}

TEST(WireSwitchml, OtherPacketsReadBack) {
  const Common from_switch{Type::waiting, 0, 5, 6};
  Ranks missing;
  missing.insert(0);
  missing.insert(255);
  std::vector<std::byte> packet(waiting_bytes(missing));
  EXPECT_EQ(40U + 32, packet.size());
  write_waiting(packet, {from_switch, 7, 8, 9, true, missing});
  Common read{};
  WaitingPacket waiting{};
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  ASSERT_EQ(ParseError::none, parse_waiting(packet, read, waiting));
  EXPECT_EQ(7U, waiting.operation);
  EXPECT_EQ(8U, waiting.chunk);
  EXPECT_EQ(9U, waiting.slot);
  EXPECT_TRUE(waiting.exponent_round);
  EXPECT_EQ(missing, waiting.missing);
  for (const std::uint32_t count : {0U, 1U, 64U, 65U, max_workers}) {
    packet.assign(waiting_bytes(Ranks::first(count)), {});
    EXPECT_EQ(40U + (count + 63) / 64 * 8, packet.size());
    write_waiting(packet, {{Type::missing, 4095, 5, 6}, 7, 8, 9, false, Ranks::first(count), count});
    ASSERT_EQ(ParseError::none, parse_common(packet, read));
    ASSERT_EQ(ParseError::none, parse_waiting(packet, read, waiting));
    EXPECT_EQ(Ranks::first(count), waiting.missing);
    EXPECT_EQ(4095, waiting.common.sender);
    EXPECT_EQ(count, waiting.overtaken_by);
    EXPECT_EQ(count, load_le<std::uint32_t>(packet.data() + 36));
  }

  packet.assign(mismatch_bytes, {});
  write_mismatch(packet, {{Type::mismatch, 0, 5, 6}, 7, 8, 9, 10, 1, 4095});
  MismatchPacket mismatch{};
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  ASSERT_EQ(ParseError::none, parse_mismatch(packet, read, mismatch));
  EXPECT_EQ(9U, mismatch.first_signature);
  EXPECT_EQ(10U, mismatch.second_signature);
  EXPECT_EQ(1, mismatch.first_rank);
  EXPECT_EQ(4095, mismatch.second_rank);

  packet.assign(100, std::byte{1});
  write_probe(packet, {{Type::probe, 0, 0, 0}, 42});
  ProbePacket probe{};
  ASSERT_EQ(ParseError::none, parse_common(packet, read));
  ASSERT_EQ(ParseError::none, parse_probe(packet, read, probe));
  EXPECT_EQ(42U, probe.sequence);
}

// Whatever the bytes, the parsers stay inside them (asan watches) and what they accept is consistent.
TEST(WireSwitchml, RandomBytesAreParsedSafely) {
  Random random(11);
  std::size_t accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::vector<std::byte> bytes(random.below(200));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
    if (bytes.size() >= common_bytes) {  // get past the outer checks
      bytes[0] = std::byte{version};
      bytes[1] = static_cast<std::byte>(1 + random.below(11) + (random.chance(0.9) ? 16 : 0));
      if (random.chance(0.5)) bytes[2] = std::byte{0};
      if (random.chance(0.9)) bytes[3] = std::byte{0};
      if (bytes.size() >= chunk_header_bytes && random.chance(0.8)) {
        store_le(bytes.data() + 44, static_cast<std::uint16_t>(random.below(40)));
        bytes[46] = static_cast<std::byte>(random.below(4));
        bytes[41] = static_cast<std::byte>(random.chance(0.3) ? random.below(9) | random.below(8) << 4 : 0);
        bytes[47] = static_cast<std::byte>(random.below(4) | (random.chance(0.3) ? random.below(4) << 2 : 0));
        if (random.chance(0.5)) {  // and of the length that they imply
          ChunkHeader implied;
          implied.elements = load_le<std::uint16_t>(bytes.data() + 44);
          implied.exponents = std::to_integer<std::uint8_t>(bytes[46]);
          implied.masks = (bytes[47] & std::byte{2}) != std::byte{0};
          constexpr DType dtypes[] = {DType::int32, DType::float16, DType::bfloat16, DType::float32, DType::float64,
                                      DType::int64, DType::int16,   DType::int8,     DType::uint8};
          implied.dtype = dtypes[std::to_integer<std::size_t>(bytes[41]) % 16 % 9];
          bytes.resize(chunk_packet_bytes(implied));
        }
      }
      seal(bytes);
    }
    Common read{};
    if (parse_common(bytes, read) != ParseError::none) continue;
    ChunkPacket chunk{};
    WaitingPacket waiting{};
    MismatchPacket mismatch{};
    ProbePacket probe{};
    static_cast<void>(parse_waiting(bytes, read, waiting));
    static_cast<void>(parse_mismatch(bytes, read, mismatch));
    static_cast<void>(parse_probe(bytes, read, probe));
    if (parse_chunk(bytes, read, chunk) != ParseError::none) continue;
    ++accepted;
    EXPECT_EQ(bytes.size(), chunk_packet_bytes(chunk.header));
  }
  EXPECT_GT(accepted, 150U);
}

TEST(WireSwitchml, FoldedEpochsDependOnEveryRank) {
  const std::uint32_t epochs[] = {1, 2, 3}, others[] = {1, 2, 4}, swapped[] = {2, 1, 3};
  EXPECT_NE(fold_epochs(epochs), fold_epochs(others));
  EXPECT_NE(fold_epochs(epochs), fold_epochs(swapped));
}

}  // namespace
}  // namespace netsum::wire::switchml
