// A switch with a parent and a child switch, packet by packet: ranks 1 and 2 are its own, ranks 3 to 5 are below the child,
// rank 0 is elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/wire_types.h"
#include "protocol/switchml/switch.h"
#include "support/recording_sink.h"
#include "wire/epochs.h"

namespace netsum {
namespace {

using namespace std::chrono_literals;
using testing::Datagram;
using testing::RecordingSink;
using wire::switchml::ChunkHeader;
using wire::switchml::Ranks;
using wire::switchml::Type;

constexpr std::uint64_t epoch = 7;
const std::vector<std::uint32_t> epochs = {100, 101, 102, 103, 104, 105};

Endpoint at(std::uint8_t number) {
  return {.address = {0xfd, number}, .port = 1};
}
const Endpoint parent = at(99), child = at(50);

Ranks set_of(std::initializer_list<std::uint32_t> ranks) {
  Ranks set;
  for (const std::uint32_t rank : ranks) set.insert(rank);
  return set;
}

class TreeSwitchTest : public ::testing::Test {
 protected:
  TreeSwitchTest() {
    switchml::SwitchJobConfig config{epoch, 64, 4, {}};
    config.members = {{101, at(1)}, {102, at(2)}, {0, child}};
    config.tree = switchml::TreePlace{{set_of({1}), set_of({2}), set_of({3, 4, 5})}, {false, false, true}, parent, epochs};
    memory_.resize(switchml::Switch::memory_bytes(config) / sizeof(Line));
    EXPECT_TRUE(switch_.add_job(config, std::as_writable_bytes(std::span(memory_))));
  }

  static ChunkHeader chunk(std::uint32_t number = 0) {
    return {.chunk = number,
            .signature = 5,
            .slot = static_cast<std::uint16_t>(number % 4),
            .version = static_cast<std::uint8_t>(number / 4 % 2),
            .elements = 2};
  }
  static std::vector<std::byte> packet(Type type, std::uint32_t sender, std::uint32_t rank_epoch, const ChunkHeader& header,
                                       std::uint32_t value) {
    std::vector<std::byte> bytes(wire::switchml::chunk_packet_bytes(header));
    wire::switchml::write_chunk_header(bytes, {type, static_cast<std::uint16_t>(sender), epoch, rank_epoch}, header);
    for (std::size_t at = wire::switchml::chunk_header_bytes; at + 4 <= bytes.size(); at += 4) store_le(&bytes[at], value);
    wire::switchml::seal(bytes);
    return bytes;
  }
  static std::vector<std::byte> said(Type type, const ChunkHeader& header, const Ranks& missing, std::uint32_t sender = 0,
                                     std::uint32_t overtaken_by = wire::switchml::WaitingPacket::not_overtaken) {
    std::vector<std::byte> bytes(wire::switchml::waiting_bytes(missing));
    wire::switchml::write_waiting(bytes, {{type, static_cast<std::uint16_t>(sender), epoch, folded()},
                                          header.operation,
                                          header.chunk,
                                          header.slot,
                                          false,
                                          missing,
                                          overtaken_by});
    return bytes;
  }
  [[nodiscard]] static std::uint32_t folded() { return wire::fold_epochs(epochs); }

  std::vector<Datagram> receive(const std::vector<std::byte>& bytes, const Endpoint& from) {
    const RxView view{bytes, from};
    sink_.clear();
    switch_.on_packets({&view, 1}, now_, sink_);
    sink_.flush();
    now_ += 10us;
    return sink_.sent();
  }
  std::vector<Datagram> from_rank(std::uint32_t rank, const ChunkHeader& header, std::uint32_t value = 1) {
    return receive(packet(Type::contribution, rank, epochs[rank], header, value), at(static_cast<std::uint8_t>(rank)));
  }
  std::vector<Datagram> from_child(const ChunkHeader& header, std::uint32_t value = 10) {
    return receive(packet(Type::contribution, 3, folded(), header, value), child);
  }
  std::vector<Datagram> result(const ChunkHeader& header, std::uint32_t value = 1000, const Endpoint& from = parent) {
    return receive(packet(Type::result, 0, folded(), header, value), from);
  }
  // Of all members; what went upstream.
  std::vector<Datagram> gather(const ChunkHeader& header) {
    EXPECT_TRUE(from_rank(1, header).empty());
    EXPECT_TRUE(from_rank(2, header).empty());
    return from_child(header);
  }
  static std::optional<wire::switchml::WaitingPacket> waiting_in(const Datagram& datagram) {
    wire::switchml::Common common;
    wire::switchml::WaitingPacket waiting{};
    if (wire::switchml::parse_common(datagram.bytes, common) != wire::ParseError::none ||
        (common.type != Type::waiting && common.type != Type::missing) ||
        wire::switchml::parse_waiting(datagram.bytes, common, waiting) != wire::ParseError::none) {
      return std::nullopt;
    }
    return waiting;
  }
  [[nodiscard]] const switchml::JobCounters& counters() const { return *switch_.job_counters(epoch); }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory_;
  switchml::Switch switch_;
  RecordingSink sink_;
  Time now_{1s};
};

TEST_F(TreeSwitchTest, OneSumGoesUpAndTheResultDownUnchanged) {
  const auto up = gather(chunk());
  ASSERT_EQ(1U, up.size());
  EXPECT_EQ(parent, up[0].to);
  EXPECT_EQ(packet(Type::contribution, 1, folded(), chunk(), 12), up[0].bytes);
  const auto down = result(chunk());
  ASSERT_EQ(3U, down.size());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((std::vector{at(1), at(2), child}[i]), down[i].to);
    EXPECT_EQ(packet(Type::result, 0, folded(), chunk(), 1000), down[i].bytes);
  }
  const auto again = from_rank(2, chunk());
  ASSERT_EQ(1U, again.size()) << "it lost the result";
  EXPECT_EQ(at(2), again[0].to);
  EXPECT_EQ(down[1].bytes, again[0].bytes);
}

TEST_F(TreeSwitchTest, AResultIsTakenFromTheParentAloneAndOnce) {
  EXPECT_TRUE(result(chunk()).empty()) << "of no round";
  from_rank(1, chunk());
  EXPECT_TRUE(result(chunk()).empty()) << "the sum is not upstream";
  from_rank(2, chunk());
  from_child(chunk());
  EXPECT_TRUE(result(chunk(), 1, child).empty());
  EXPECT_TRUE(result(chunk(), 1, at(98)).empty());
  EXPECT_EQ(2U, counters().dropped_source);
  ChunkHeader longer = chunk();
  longer.elements = 3;
  EXPECT_TRUE(result(longer).empty());
  EXPECT_EQ(1U, counters().dropped_shape);
  EXPECT_EQ(3U, result(chunk()).size());
  EXPECT_TRUE(result(chunk()).empty());
  EXPECT_EQ(3U, counters().dropped_stale);
}

TEST_F(TreeSwitchTest, ANewerRoundWaitsForTheResultOfTheVersionsLast) {
  gather(chunk(0));
  EXPECT_TRUE(from_rank(1, chunk(8)).empty());
  EXPECT_EQ(1U, counters().dropped_early) << "its sum is upstream, not final";
  result(chunk(0));
  EXPECT_EQ(1U, gather(chunk(8)).size());
}

TEST_F(TreeSwitchTest, ARepeatSendsTheSumAgainOnceForAll) {
  gather(chunk());
  ASSERT_EQ(1U, from_rank(1, chunk()).size());
  EXPECT_EQ(parent, sink_.sent()[0].to);
  EXPECT_TRUE(from_rank(2, chunk()).empty()) << "at the same time";
  EXPECT_TRUE(from_child(chunk()).empty());
  now_ += 2ms;
  EXPECT_EQ(1U, from_rank(2, chunk()).size());
  EXPECT_EQ(2U, counters().sums_repeated);
}

TEST_F(TreeSwitchTest, TheParentsWaitingGoesToThoseThatAsked) {
  gather(chunk());
  from_rank(2, chunk());
  const auto told = receive(said(Type::waiting, chunk(), set_of({0})), parent);
  ASSERT_EQ(1U, told.size());
  EXPECT_EQ(at(2), told[0].to);
  EXPECT_EQ(set_of({0}), waiting_in(told[0])->missing);
  EXPECT_TRUE(receive(said(Type::waiting, chunk(), set_of({0})), parent).empty()) << "nobody has asked since";
  EXPECT_TRUE(receive(said(Type::waiting, chunk(), set_of({0})), child).empty());
}

// The parent lacks the sum: it was lost, or this switch waits itself.
TEST_F(TreeSwitchTest, AskedForItsSumItSendsItAgainOrSaysWhoIsMissing) {
  from_rank(1, chunk());
  const auto answers = receive(said(Type::waiting, chunk(), set_of({1, 2, 3, 4, 5})), parent);
  ASSERT_EQ(2U, answers.size());
  EXPECT_EQ(parent, answers[0].to);
  EXPECT_EQ(Type::missing, waiting_in(answers[0])->common.type);
  EXPECT_EQ(1, waiting_in(answers[0])->common.sender);
  EXPECT_EQ(set_of({2, 3, 4, 5}), waiting_in(answers[0])->missing);
  EXPECT_EQ(child, answers[1].to) << "which is asked in turn";
  receive(said(Type::missing, chunk(), set_of({4}), 3), child);
  now_ += 2ms;
  const auto precise = receive(said(Type::waiting, chunk(), set_of({1, 2, 3, 4, 5})), parent);
  EXPECT_EQ(set_of({2, 4}), waiting_in(precise.at(0))->missing);
  from_rank(2, chunk());
  from_child(chunk());
  const auto again = receive(said(Type::waiting, chunk(), set_of({2, 4})), parent);
  ASSERT_EQ(1U, again.size());
  EXPECT_EQ(packet(Type::contribution, 1, folded(), chunk(), 12), again[0].bytes);
}

TEST_F(TreeSwitchTest, AnOvertakenSumComesAgainIfItWasSentBefore) {
  for (std::uint32_t number = 0; number < 4; ++number) gather(chunk(number));
  const auto overtaken_by = [&](std::uint32_t number) {
    return receive(said(Type::waiting, chunk(0), set_of({1, 2, 3, 4, 5}), 0, 2 * number), parent);
  };
  EXPECT_TRUE(receive(said(Type::waiting, chunk(1), set_of({1}), 0, 2 * 0), parent).empty()) << "it was sent later";
  EXPECT_EQ(1U, overtaken_by(3).size());
  EXPECT_TRUE(overtaken_by(3).empty()) << "it is on its way again";
  result(chunk(1));
  gather(chunk(5));
  EXPECT_EQ(1U, receive(said(Type::waiting, chunk(0), set_of({1}), 0, 2 * 1 + 1), parent).size());
  EXPECT_TRUE(receive(said(Type::waiting, chunk(0), set_of({1}), 0, 2 * 1 + 1), parent).empty()) << "it is on its way again";
}

TEST_F(TreeSwitchTest, AParentThatIsARoundAheadShowsThatAResultWasLost) {
  gather(chunk(0));
  const auto up = receive(said(Type::waiting, chunk(4), set_of({1, 2, 3, 4, 5}), 0, 2), parent);
  ASSERT_EQ(1U, up.size());
  EXPECT_EQ(packet(Type::contribution, 1, folded(), chunk(0), 12), up[0].bytes);
}

// Summed in rank order, at the root.
TEST_F(TreeSwitchTest, DoublesGoUpUnsummed) {
  ChunkHeader header = chunk();
  header.dtype = DType::float64;
  const auto own = from_rank(2, header);
  ASSERT_EQ(1U, own.size());
  EXPECT_EQ(parent, own[0].to);
  EXPECT_EQ(packet(Type::contribution, 2, 102, header, 1), own[0].bytes);
  const auto below = receive(packet(Type::contribution, 4, 104, header, 1), child);
  EXPECT_EQ(packet(Type::contribution, 4, 104, header, 1), below.at(0).bytes);
  EXPECT_TRUE(receive(packet(Type::contribution, 3, folded(), header, 1), child).empty()) << "a sum of floats";
  EXPECT_TRUE(receive(packet(Type::contribution, 4, 104, chunk(), 1), child).empty()) << "integers unsummed";
  EXPECT_EQ(2U, counters().dropped_shape);
  EXPECT_TRUE(result(header).empty()) << "some are not upstream";
  for (const std::uint32_t rank : {3U, 5U}) receive(packet(Type::contribution, rank, epochs[rank], header, 1), child);
  from_rank(1, header);
  EXPECT_EQ(1U, from_rank(1, header).size()) << "a repeat goes up";
  EXPECT_EQ(3U, result(header).size());
}

class HalvesInATreeTest : public TreeSwitchTest {
 protected:
  // Of two values.
  static ChunkHeader halves(std::uint32_t number = 0) {
    ChunkHeader header = chunk(number);
    header.dtype = DType::bfloat16;
    return header;
  }
  std::vector<Datagram> from_rank(std::uint32_t rank, std::uint16_t first, std::uint16_t second, std::uint32_t number = 0) {
    return TreeSwitchTest::from_rank(rank, halves(number), std::uint32_t{second} << 16 | first);
  }
  static std::vector<std::byte> part(const wire::switchml::SumPart& fields, std::initializer_list<int> payload,
                                     std::uint32_t rank_epoch = folded(), std::uint32_t sender = 3) {
    wire::switchml::SumPart own = fields;
    own.chunk.common = {Type::sum_part, static_cast<std::uint16_t>(sender), epoch, rank_epoch};
    std::vector<std::byte> bytes(wire::switchml::sum_part_bytes(own.chunk.header, own.place));
    wire::switchml::write_sum_part_header(bytes, own);
    std::size_t at = wire::switchml::sum_part_header_bytes + wire::switchml::padded_exponents(own.chunk.header.exponents);
    for (const int value : payload) {
      if (own.place == SumParts::masks) {
        bytes[at++] = static_cast<std::byte>(value);
      } else {
        store_le(&bytes[at], static_cast<std::uint16_t>(value));
        at += 2;
      }
    }
    wire::switchml::seal(bytes);
    return bytes;
  }
  static std::vector<std::byte> part(std::uint16_t place, std::uint8_t number, std::uint8_t all,
                                     std::initializer_list<int> payload) {
    return part({{{}, halves(), {}, {}, {}}, place, number, all}, payload);
  }
  static constexpr std::uint16_t one = 0x3f80, large = 0x5380;  // 2^40
  static constexpr int place_of_one = 133;                      // in units of the least value
};

TEST_F(HalvesInATreeTest, OneSumGoesUpInParts) {
  EXPECT_TRUE(from_rank(1, one, large).empty());
  EXPECT_TRUE(from_rank(2, one, 0).empty());
  EXPECT_TRUE(receive(part(place_of_one, 0, 2, {3, 0}), child).empty());
  EXPECT_EQ(1U, counters().parts);
  EXPECT_EQ(set_of({3, 4, 5}), waiting_in(receive(said(Type::waiting, chunk(), set_of({1, 3})), parent).at(0))->missing)
      << "a sum that is not whole";
  EXPECT_TRUE(receive(part(place_of_one, 0, 2, {3, 0}), child).empty()) << "again";
  EXPECT_TRUE(receive(part(place_of_one, 1, 3, {3, 0}), child).empty()) << "of another sum";
  EXPECT_EQ(1U, counters().dropped_shape);
  const auto up = receive(part(place_of_one + 40, 1, 2, {0, -3}), child);
  ASSERT_EQ(2U, up.size());
  const auto sent = [](std::uint16_t place, std::uint8_t number, std::initializer_list<int> payload) {
    return part({{{}, halves(), {}, {}, {}}, place, number, 2}, payload, folded(), 1);
  };
  for (const Datagram& each : up) EXPECT_EQ(parent, each.to);
  EXPECT_EQ(sent(place_of_one, 0, {5, 0}), up[0].bytes);
  EXPECT_EQ(sent(place_of_one + 32, 1, {0, -512}), up[1].bytes);
  EXPECT_EQ(3U, counters().contributions);
  EXPECT_EQ(1U, counters().sums_in_parts);
  EXPECT_EQ(2U, counters().parts_sent);
  now_ += 2ms;
  const auto again = from_rank(1, one, large);
  ASSERT_EQ(2U, again.size());
  EXPECT_EQ(up[1], again[0]) << "a repeat begins with another part, as a queue on the way may be short";
  EXPECT_EQ(up[0], again[1]);
  EXPECT_TRUE(receive(part(place_of_one, 0, 2, {3, 0}), child).empty()) << "at the same time";
  const auto down = result(halves());
  EXPECT_EQ(3U, down.size());
  now_ += 2ms;
  EXPECT_EQ(1U, receive(part(place_of_one, 0, 2, {3, 0}), child).size()) << "a repeat brings the result";
  EXPECT_TRUE(receive(part(place_of_one + 40, 1, 2, {0, -3}), child).empty()) << "once for all parts";
}

// What digits do not say: infinities, NaN, and that all are -0.
TEST_F(HalvesInATreeTest, MasksGoUpWithTheSum) {
  from_rank(1, 0x8000, 0x7f80);
  from_rank(2, 0x8000, one);
  const auto up = receive(part(SumParts::masks, 0, 1, {0, 2, 1}), child);
  ASSERT_EQ(2U, up.size());
  EXPECT_EQ(part({{{}, halves(), {}, {}, {}}, place_of_one, 0, 2}, {0, 1}, folded(), 1), up[0].bytes);
  EXPECT_EQ(part({{{}, halves(), {}, {}, {}}, SumParts::masks, 1, 2}, {2, 2, 1}, folded(), 1), up[1].bytes);
}

TEST_F(HalvesInATreeTest, ASumOfShortFloatsComesInPartsAndFromTheChildAlone) {
  EXPECT_TRUE(receive(packet(Type::contribution, 3, folded(), halves(), 0), child).empty()) << "a sum in one packet";
  EXPECT_TRUE(receive(packet(Type::contribution, 4, 104, halves(), 0), child).empty()) << "unsummed";
  EXPECT_TRUE(receive(part({{{}, halves(), {}, {}, {}}, 0, 0, 1}, {0, 0}, 101, 1), at(1)).empty()) << "a rank's";
  wire::switchml::SumPart wrong{{{}, halves(), {}, {}, {}}, 0, 0, 1};
  wrong.chunk.header.elements = 129;
  EXPECT_TRUE(receive(part(wrong, {}), child).empty()) << "longer than packets are";
  EXPECT_EQ(4U, counters().dropped_shape);
  EXPECT_TRUE(receive(part({{{}, halves(), {}, {}, {}}, 0, 0, 1}, {0, 0}, folded(), 4), child).empty());
  EXPECT_EQ(1U, counters().dropped_rank) << "its lowest rank is 3";
  wrong.chunk.header = halves();
  wrong.chunk.header.slot = 4;
  EXPECT_TRUE(receive(part(wrong, {0, 0}), child).empty());
  EXPECT_EQ(1U, counters().dropped_slot) << "of the window that gathers nothing";
}

// A sum's exponents are those of its last part, as of any other.
TEST_F(HalvesInATreeTest, TheLookAheadGoesUpWithEachPart) {
  ChunkHeader header = halves();
  header.exponents = 1;
  header.ahead_operation = 1;
  const auto exponent = [&](std::uint8_t value) { return std::vector<std::byte>(1, std::byte{value}); };
  const auto of_child = [&](std::uint8_t number, int value) {
    const std::vector<std::byte> own = exponent(90);
    return part({{{}, header, own, {}, {}}, static_cast<std::uint16_t>(place_of_one + 40 * number), number, 2}, {value, 0});
  };
  EXPECT_TRUE(receive(of_child(1, 1), child).empty());
  for (const std::uint32_t rank : {1U, 2U}) {
    std::vector<std::byte> bytes(wire::switchml::chunk_packet_bytes(header));
    wire::switchml::write_chunk_header(bytes, {Type::contribution, static_cast<std::uint16_t>(rank), epoch, epochs[rank]},
                                       header);
    bytes[wire::switchml::chunk_header_bytes] = std::byte{static_cast<std::uint8_t>(80 + rank)};
    wire::switchml::seal(bytes);
    EXPECT_TRUE(receive(bytes, at(static_cast<std::uint8_t>(rank))).empty());
  }
  const auto up = receive(of_child(0, 1), child);
  ASSERT_EQ(2U, up.size());
  for (const Datagram& each : up) EXPECT_EQ(std::byte{90}, each.bytes[wire::switchml::sum_part_header_bytes]);
}

TEST_F(HalvesInATreeTest, ALookAheadThatARankDoesNotKnowIsUnknownWhoeverBegins) {
  const std::vector<std::byte> exponents(4, std::byte{90});
  ChunkHeader known = halves();
  known.exponents = 4;
  known.ahead_operation = 1;
  const auto of_child = [&](std::uint16_t place, std::uint8_t number) {
    return part({{{}, known, exponents, {}, {}}, place, number, 2}, {1, 0});
  };
  EXPECT_TRUE(receive(of_child(place_of_one, 0), child).empty());
  EXPECT_TRUE(from_rank(1, one, 0).empty()) << "it knows of none";
  EXPECT_TRUE(from_rank(2, one, 0).empty());
  const auto up = receive(of_child(place_of_one + 40, 1), child);
  ASSERT_EQ(2U, up.size());
  EXPECT_EQ(part({{{}, halves(), {}, {}, {}}, place_of_one, 0, 2}, {3, 0}, folded(), 1), up[0].bytes);
}

TEST_F(TreeSwitchTest, ASumIsOfTheWholeChild) {
  EXPECT_TRUE(receive(packet(Type::contribution, 4, folded(), chunk(), 1), child).empty());
  EXPECT_EQ(1U, counters().dropped_rank) << "its lowest rank is 3";
  EXPECT_TRUE(receive(packet(Type::contribution, 0, 100, chunk(), 1), at(0)).empty());
  EXPECT_EQ(2U, counters().dropped_rank) << "rank 0 is elsewhere";
  EXPECT_TRUE(receive(packet(Type::contribution, 3, folded(), chunk(), 1), at(1)).empty());
  EXPECT_EQ(1U, counters().dropped_source);
}

// Sums without values, and what says that nobody below wants any.
class RunsInATreeTest : public TreeSwitchTest {
 protected:
  static ChunkHeader empty(std::uint32_t number, bool acknowledge_only = false, bool later = false, bool due = false) {
    ChunkHeader header = chunk(number);
    header.elements = 0;
    header.acknowledge_only = acknowledge_only;
    header.later = later;
    header.due = due;
    return header;
  }
  static std::vector<std::byte> run(Type type, std::uint32_t sender, std::uint32_t rank_epoch,
                                    const std::vector<ChunkHeader>& members) {
    wire::switchml::Run all;
    for (const ChunkHeader& member : members) EXPECT_TRUE(all.take(member));
    std::vector<std::byte> bytes(wire::switchml::run_bytes(all));
    wire::switchml::write_run_header(bytes, {type, static_cast<std::uint16_t>(sender), epoch, rank_epoch}, all);
    std::fill_n(bytes.begin() + wire::switchml::run_header_bytes, all.size() * all.first.exponents, std::byte{3});
    wire::switchml::seal(bytes);
    return bytes;
  }
  std::vector<Datagram> run_of_rank(std::uint32_t rank, const std::vector<ChunkHeader>& members) {
    return receive(run(Type::empty_contributions, rank, epochs[rank], members), at(static_cast<std::uint8_t>(rank)));
  }
  std::vector<Datagram> run_of_child(const std::vector<ChunkHeader>& members) {
    return receive(run(Type::empty_contributions, 3, folded(), members), child);
  }
  // What goes upstream of a chunk that the members say this of: `flags` alone of each.
  ChunkHeader sum_of(const ChunkHeader& first, const ChunkHeader& second, const ChunkHeader& childs) {
    EXPECT_TRUE(from_rank(1, first).empty());
    EXPECT_TRUE(from_rank(2, second).empty());
    const auto up = from_child(childs);
    wire::switchml::Common common;
    wire::switchml::ChunkPacket sent;
    EXPECT_EQ(1U, up.size());
    EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_common(up[0].bytes, common));
    EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_chunk(up[0].bytes, common, sent));
    return sent.header;
  }
};

TEST_F(RunsInATreeTest, SumsThatOneRunCompletesGoUpInOne) {
  EXPECT_TRUE(run_of_rank(1, {empty(0), empty(1), empty(2)}).empty());
  EXPECT_TRUE(run_of_child({empty(0), empty(2), empty(3)}).empty());
  const auto up = run_of_rank(2, {empty(0), empty(1), empty(2), empty(3)});
  ASSERT_EQ(1U, up.size());
  EXPECT_EQ(parent, up[0].to);
  EXPECT_EQ(run(Type::empty_contributions, 1, folded(), {empty(0), empty(2)}), up[0].bytes);
  EXPECT_EQ(2U, counters().sums_sent);
  EXPECT_EQ(2U, counters().sums_in_runs);
  const auto alone = from_child(empty(1));
  ASSERT_EQ(1U, alone.size());
  EXPECT_EQ(packet(Type::contribution, 1, folded(), empty(1), 0), alone[0].bytes);
  const auto again = from_rank(2, empty(2));
  ASSERT_EQ(1U, again.size()) << "a repeat is of one chunk";
  EXPECT_EQ(packet(Type::contribution, 1, folded(), empty(2), 0), again[0].bytes);
  EXPECT_EQ(counters().packets, outcomes(counters()));
}

TEST_F(RunsInATreeTest, SumsWithValuesGoUpAlone) {
  EXPECT_TRUE(run_of_rank(1, {empty(0), empty(1), empty(2)}).empty());
  EXPECT_TRUE(from_child(chunk(1)).empty());
  EXPECT_TRUE(run_of_child({empty(0), empty(2)}).empty());
  const auto up = run_of_rank(2, {empty(0), empty(1), empty(2)});
  ASSERT_EQ(2U, up.size());
  EXPECT_EQ(packet(Type::contribution, 1, folded(), chunk(1), 10), up[0].bytes);
  EXPECT_EQ(run(Type::empty_contributions, 1, folded(), {empty(0), empty(2)}), up[1].bytes);
}

TEST_F(RunsInATreeTest, ARunHasTheExponentsOfEach) {
  const auto with_exponents = [](std::uint32_t number) {
    ChunkHeader header = empty(number);
    header.exponents = 1;
    header.ahead_operation = 0;
    header.ahead_chunk = number + 4;
    return header;
  };
  const std::vector<ChunkHeader> both{with_exponents(0), with_exponents(1)};
  EXPECT_TRUE(run_of_rank(1, both).empty());
  EXPECT_TRUE(run_of_rank(2, both).empty());
  const auto up = run_of_child(both);
  ASSERT_EQ(1U, up.size());
  EXPECT_EQ(run(Type::empty_contributions, 1, folded(), both), up[0].bytes);
}

TEST_F(RunsInATreeTest, ARunIsOfTheWholeChild) {
  EXPECT_TRUE(receive(run(Type::empty_contributions, 4, folded(), {empty(0), empty(1)}), child).empty());
  EXPECT_EQ(1U, counters().dropped_rank);
  EXPECT_TRUE(receive(run(Type::empty_contributions, 4, epochs[4], {empty(0), empty(1)}), child).empty());
  EXPECT_EQ(1U, counters().dropped_shape);
  EXPECT_TRUE(from_rank(1, empty(0, false, false, true)).empty());
  EXPECT_EQ(2U, counters().dropped_rank) << "ranks have nothing that is due";
}

TEST_F(RunsInATreeTest, TheParentMayWaitIfAllBelowMay) {
  const auto flags = [](const ChunkHeader& header) { return std::tuple(header.acknowledge_only, header.later, header.due); };
  const auto later = [](std::uint32_t number) { return empty(number, true, true); };
  EXPECT_EQ(std::tuple(true, true, false), flags(sum_of(later(0), later(0), later(0))));
  EXPECT_EQ(std::tuple(true, false, false), flags(sum_of(later(1), empty(1, true), later(1))));
  EXPECT_EQ(std::tuple(false, false, true), flags(sum_of(empty(2), empty(2, true), later(2))));
  EXPECT_EQ(std::tuple(false, false, true), flags(sum_of(empty(3), later(3), empty(3, false, false, true))));
  EXPECT_EQ(std::tuple(false, false, false), flags(sum_of(empty(4), later(4), later(4))));
}

TEST_F(RunsInATreeTest, AChildIsToldWithAResultThatItWants) {
  for (const std::uint32_t number : {0U, 1U}) sum_of(chunk(number), chunk(number), empty(number, true, true));
  sum_of(chunk(2), chunk(2), empty(2, false, false, true));
  for (const std::uint32_t number : {0U, 1U}) EXPECT_EQ(2U, result(chunk(number)).size()) << "to the ranks";
  const auto down = result(chunk(2));
  ASSERT_EQ(4U, down.size());
  EXPECT_EQ(child, down[0].to) << "first what it waits for longest";
  EXPECT_EQ(run(Type::acknowledgements, 0, folded(), {empty(0), empty(1)}), down[0].bytes);
  EXPECT_EQ(packet(Type::result, 0, folded(), chunk(2), 1000), down[3].bytes);
  // Of an older chunk nothing waits any more.
  sum_of(chunk(3), chunk(3), empty(3, true, true));
  sum_of(chunk(4), chunk(4), empty(4, false, false, true));
  EXPECT_EQ(3U, result(chunk(4)).size());
  EXPECT_EQ(3U, result(chunk(3)).size());
}

TEST_F(RunsInATreeTest, AcknowledgementsFromTheParentEndTheirRoundsAndGoOn) {
  for (const std::uint32_t number : {0U, 1U}) {
    const auto sent = sum_of(empty(number, true, number == 0), empty(number, true), empty(number, true, number == 0));
    EXPECT_TRUE(sent.acknowledge_only);
  }
  const auto both = run(Type::acknowledgements, 0, folded(), {empty(0), empty(1)});
  EXPECT_TRUE(receive(both, at(1)).empty()) << "from no parent";
  const auto down = receive(both, parent);
  ASSERT_EQ(4U, down.size());
  EXPECT_EQ(packet(Type::acknowledgement, 0, folded(), empty(0), 0), down[0].bytes);
  EXPECT_EQ(at(2), down[0].to) << "who does not wait";
  EXPECT_EQ(both, down[1].bytes);
  EXPECT_EQ(both, down[3].bytes);
  EXPECT_EQ(2U, counters().results_taken);
  EXPECT_TRUE(receive(both, parent).empty());
  EXPECT_EQ(2U, counters().dropped_stale);
  EXPECT_EQ(counters().packets, outcomes(counters()));
}

TEST_F(TreeSwitchTest, AMismatchGoesToEverybody) {
  from_rank(1, chunk());
  ChunkHeader other = chunk();
  other.signature = 6;
  const auto told = from_child(other);
  std::vector<Endpoint> to;
  for (const Datagram& each : told) to.push_back(each.to);
  EXPECT_EQ((std::vector{at(1), at(2), child, parent}), to);
  // The parent missed that, and asks.
  const auto asked = receive(said(Type::waiting, chunk(), set_of({1, 2, 3, 4, 5})), parent);
  ASSERT_EQ(1U, asked.size());
  EXPECT_EQ(parent, asked[0].to);
  EXPECT_EQ(told[0].bytes, asked[0].bytes);
  const auto relayed = receive(told[0].bytes, parent);
  EXPECT_EQ(3U, relayed.size());
  EXPECT_TRUE(receive(told[0].bytes, at(1)).empty()) << "no rank says so";
}

TEST_F(TreeSwitchTest, AParentThatHasLostTheJobEndsItBelow) {
  std::vector<std::byte> unknown(wire::switchml::common_bytes);
  wire::switchml::write_unknown_job(unknown, {Type::contribution, 1, epoch, folded()});
  EXPECT_TRUE(receive(unknown, child).empty());
  const auto told = receive(unknown, parent);
  ASSERT_EQ(3U, told.size());
  wire::switchml::Common common;
  ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_common(told[0].bytes, common));
  EXPECT_EQ(101U, common.rank_epoch) << "as rank 1 expects it";
  ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_common(told[2].bytes, common));
  EXPECT_EQ(folded(), common.rank_epoch);
}

}  // namespace
}  // namespace netsum
