// The switch with hand-made packets; and the published Algorithm 3, to show why it is not what we run.

#include "protocol/switchml/switch.h"
#include "protocol/switchml/windows.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/bytes.h"
#include "seal/sealer.h"
#include "support/recording_sink.h"
#include "support/virtual_cluster.h"

namespace netsum::testing {
namespace {

constexpr std::uint64_t epoch = 77;
constexpr std::uint32_t ranks = 2;

class SwitchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::size_t bytes = switchml::Switch::memory_bytes(256, 2, ranks);
    memory_.resize(bytes / 64 + 1);
    switchml::SwitchJobConfig config{epoch, 256, 2, {}};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) config.members.push_back({100 + rank, host(rank)});
    ASSERT_TRUE(switch_.add_job(config, std::as_writable_bytes(std::span(memory_))));
  }

  static Endpoint host(std::uint32_t rank) { return endpoint_of(static_cast<std::uint8_t>(rank), 9); }

  static std::vector<std::byte> contribution(std::uint32_t rank, wire::switchml::ChunkHeader header, std::int32_t value,
                                             std::vector<std::uint8_t> exponents = {}) {
    header.elements = 4;
    header.exponents = static_cast<std::uint8_t>(exponents.size());
    std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
    wire::switchml::write_chunk_header(
        packet, {wire::switchml::Type::contribution, static_cast<std::uint16_t>(rank), epoch, 100 + rank}, header);
    for (std::size_t i = 0; i < exponents.size(); ++i)
      packet[wire::switchml::chunk_header_bytes + i] = std::byte{exponents[i]};
    const std::size_t payload = wire::switchml::chunk_header_bytes + wire::switchml::padded_exponents(exponents.size());
    for (std::size_t i = 0; i < 4; ++i) store_le(packet.data() + payload + 4 * i, static_cast<std::uint32_t>(value));
    wire::switchml::seal(packet);
    return packet;
  }

  void receive(const std::vector<std::byte>& packet, const Endpoint& source) {
    const RxView view{packet, source};
    switch_.on_packets({&view, 1}, now_, sink_);
    sink_.flush();
  }
  void receive(std::uint32_t rank, const wire::switchml::ChunkHeader& header, std::int32_t value,
               std::vector<std::uint8_t> exponents = {}) {
    receive(contribution(rank, header, value, std::move(exponents)), host(rank));
  }

  // The sums of the results sent since the last call, one a destination.
  std::vector<std::int32_t> take_results() {
    std::vector<std::int32_t> sums;
    for (const Datagram& sent : sink_.sent()) {
      wire::switchml::Common common{};
      wire::switchml::ChunkPacket chunk{};
      if (wire::switchml::parse_common(sent.bytes, common) != wire::ParseError::none ||
          common.type != wire::switchml::Type::result)
        continue;
      EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_chunk(sent.bytes, common, chunk));
      last_ = chunk.header;
      last_exponents_.assign(chunk.exponents.begin(), chunk.exponents.end());
      sums.push_back(static_cast<std::int32_t>(load_le<std::uint32_t>(chunk.payload.data())));
    }
    sink_.clear();
    return sums;
  }

  const switchml::JobCounters& counters() { return *switch_.job_counters(epoch); }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  switchml::Switch switch_;
  std::vector<Line> memory_;
  RecordingSink sink_;
  Time now_{std::chrono::seconds(1)};
  wire::switchml::ChunkHeader last_;
  std::vector<std::byte> last_exponents_;
};

wire::switchml::ChunkHeader chunk(std::uint32_t number, std::uint8_t version) {
  return {.chunk = number, .signature = 5, .version = version};
}

using Sums = std::vector<std::int32_t>;

// 4 bits go up and 8 come back: a result is longer than its contributions, and must fit into a packet too.
TEST_F(SwitchTest, SumsOf4BitsAreLongerThanWhatTheyAreOf) {
  const auto contribute = [&](std::uint32_t rank, std::uint16_t elements) {
    wire::switchml::ChunkHeader header = chunk(0, 0);
    header.dtype = block4;
    header.elements = elements;
    std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
    wire::switchml::write_chunk_header(
        packet, {wire::switchml::Type::contribution, static_cast<std::uint16_t>(rank), epoch, 100 + rank}, header);
    wire::switchml::seal(packet);
    receive(packet, host(rank));
  };
  contribute(0, 33 * 16);
  EXPECT_EQ(1U, counters().dropped_shape) << "1040 bytes of 1024";
  for (std::uint32_t rank = 0; rank < ranks; ++rank) contribute(rank, 33 * 15 + 5);
  EXPECT_EQ(ranks, take_results().size());
  EXPECT_EQ(65 * 15 + 9, last_.elements);
  contribute(1, 33 * 15 + 5);
  EXPECT_EQ(1U, take_results().size()) << "a repeat";
}

// A result goes to all ranks: it has a checksum unless all of them do without.
TEST_F(SwitchTest, AResultHasAChecksumIfAContributionHad) {
  const auto contribute = [&](std::uint32_t rank, std::uint32_t number, bool checked) {
    auto packet = contribution(rank, chunk(number, number % 2), 1);
    packet[1] = static_cast<std::byte>(checked << 4 | static_cast<int>(wire::switchml::Type::contribution));
    wire::switchml::seal(packet);
    sink_.clear();
    receive(packet, host(rank));
  };
  const auto result_is_checked = [&] {
    wire::switchml::Common common{};
    EXPECT_EQ(ranks, sink_.sent().size());
    EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_common(sink_.sent().at(0).bytes, common));
    return common.checked;
  };
  contribute(0, 0, false);
  contribute(1, 0, false);
  EXPECT_FALSE(result_is_checked());
  contribute(0, 1, false);
  contribute(1, 1, true);
  EXPECT_TRUE(result_is_checked());
  contribute(0, 2, true);
  contribute(1, 2, false);
  EXPECT_TRUE(result_is_checked());
  contribute(0, 3, false);
  contribute(1, 3, false);
  EXPECT_FALSE(result_is_checked()) << "the slot's former rounds do not count";
}

// Whom the switch told that it lacks their contribution to which chunk.
std::vector<std::pair<Endpoint, std::uint32_t>> losses_told(const std::vector<Datagram>& sent) {
  std::vector<std::pair<Endpoint, std::uint32_t>> told;
  for (const Datagram& each : sent) {
    wire::switchml::Common common{};
    wire::switchml::WaitingPacket waiting{};
    if (wire::switchml::parse_common(each.bytes, common) != wire::ParseError::none ||
        common.type != wire::switchml::Type::waiting)
      continue;
    EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_waiting(each.bytes, common, waiting));
    told.emplace_back(each.to, waiting.chunk);
  }
  return told;
}

// A job of eight slots, of which the first chunks go to slots 0, 1, 2, ...
class SwitchLossTest : public SwitchTest {
 protected:
  void SetUp() override {
    memory_.resize(switchml::Switch::memory_bytes(256, 8, 3) / 64 + 1);
    switchml::SwitchJobConfig config{epoch, 256, 8, {}};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) config.members.push_back({100 + rank, host(rank)});
    ASSERT_TRUE(switch_.add_job(config, std::as_writable_bytes(std::span(memory_))));
  }
  static wire::switchml::ChunkHeader header_of(std::uint32_t number) {
    return {.chunk = number, .signature = 5, .slot = static_cast<std::uint16_t>(number)};
  }
  void receive_chunk(std::uint32_t rank, std::uint32_t number) { receive(rank, header_of(number), 1); }
  // Of which the rank wants no values; `later`: and will be content with a later word.
  void receive_unwanted(std::uint32_t rank, std::uint32_t number, bool later) {
    wire::switchml::ChunkHeader header = header_of(number);
    header.acknowledge_only = true;
    header.later = later;
    receive(rank, header, 1);
  }
  void receive_empty(std::uint32_t rank, std::initializer_list<std::uint32_t> numbers) {
    wire::switchml::Run run;
    for (const std::uint32_t number : numbers) ASSERT_TRUE(run.take(header_of(number)));
    std::vector<std::byte> packet(wire::switchml::run_bytes(run));
    wire::switchml::write_run_header(
        packet, {wire::switchml::Type::empty_contributions, static_cast<std::uint16_t>(rank), epoch, 100 + rank}, run);
    wire::switchml::seal(packet);
    receive(packet, host(rank));
  }
  // The chunks of each acknowledgement that a rank has been sent since the last call.
  std::vector<std::vector<std::uint32_t>> take_acknowledgements(std::uint32_t rank) {
    std::vector<std::vector<std::uint32_t>> all;
    for (const Datagram& sent : sink_.sent()) {
      wire::switchml::Common common{};
      EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_common(sent.bytes, common));
      if (sent.to != host(rank)) continue;
      if (common.type == wire::switchml::Type::acknowledgement) {
        wire::switchml::ChunkPacket chunk;
        EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_chunk(sent.bytes, common, chunk));
        all.push_back({chunk.header.chunk});
      } else if (common.type == wire::switchml::Type::acknowledgements) {
        wire::switchml::RunPacket run;
        EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_run(sent.bytes, common, run));
        all.emplace_back();
        run.for_each([&](const auto& member) { all.back().push_back(member.header.chunk); });
      }
    }
    sink_.clear();
    return all;
  }
};

using Told = std::vector<std::vector<std::uint32_t>>;

TEST_F(SwitchLossTest, AcknowledgementsThatMayWaitComeWithALaterOne) {
  for (const std::uint32_t number : {0U, 1U, 2U, 3U}) receive_unwanted(1, number, number != 3);
  receive_chunk(0, 2);
  receive_chunk(0, 0);
  EXPECT_EQ(Told{}, take_acknowledgements(1));
  receive_unwanted(1, 0, true);
  EXPECT_EQ(Told{{0}}, take_acknowledgements(1)) << "who asks again is answered at once";
  receive_chunk(0, 3);
  EXPECT_EQ((Told{{0, 2, 3}}), take_acknowledgements(1));
  receive_chunk(0, 1);
  EXPECT_EQ(Told{{1}}, take_acknowledgements(1)) << "the later one has gone";
  EXPECT_EQ(3U, counters().acknowledgements);
  EXPECT_EQ(3U + 4, counters().results_sent);
}

// Chunks in the order of the window's slots.
wire::switchml::ChunkHeader in_window(std::uint32_t number) {
  wire::switchml::ChunkHeader made{.chunk = number, .signature = 5};
  made.slot = static_cast<std::uint16_t>(number % 8);
  made.version = static_cast<std::uint8_t>(number / 8 % 2);
  return made;
}

TEST_F(SwitchLossTest, WhatWaitedIsForgottenWhereItsSlotHasGoneOn) {
  const auto unwanted = [](std::uint32_t number, bool later) {
    auto made = in_window(number);
    made.acknowledge_only = true;
    made.later = later;
    return made;
  };
  receive(1, unwanted(0, true), 1);
  receive(1, unwanted(3, false), 1);
  receive_chunk(0, 0);
  receive(1, unwanted(0, true), 1);
  EXPECT_EQ(Told{{0}}, take_acknowledgements(1));
  receive(0, in_window(8), 1);
  receive(1, in_window(8), 1);
  receive(1, unwanted(16, true), 1);
  receive_chunk(0, 3);
  EXPECT_EQ(Told{{3}}, take_acknowledgements(1)) << "rank 0 has not sent chunk 16";
}

TEST_F(SwitchLossTest, AtMostSixteenAcknowledgementsWait) {
  for (std::uint32_t number = 0; number < 16; ++number) {
    auto unwanted = in_window(number);
    unwanted.acknowledge_only = unwanted.later = true;
    receive(1, unwanted, 1);
    EXPECT_EQ(Told{}, take_acknowledgements(1));
    receive(0, in_window(number), 1);
  }
  EXPECT_EQ((Told{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}}), take_acknowledgements(1));
}

TEST_F(SwitchLossTest, ARunIsAContributionOfEachMember) {
  receive_empty(1, {0, 1, 3});
  receive_chunk(0, 1);
  EXPECT_EQ((Sums{1, 1}), take_results());
  EXPECT_EQ(4U, counters().contributions);
  receive_empty(1, {0, 1, 3});
  EXPECT_EQ(1U, take_results().size()) << "the one that is complete";
  receive_empty(1, {0, 1, 3});
  EXPECT_EQ(0U, take_results().size()) << "one answer in a millisecond: a run is shorter";
  EXPECT_EQ(4U, counters().packets);
  EXPECT_EQ(4U, outcomes(counters()));
  receive_empty(1, {14, 16});
  EXPECT_EQ(1U, counters().dropped_slot) << "one is beyond both windows";
}

// Ranks send runs in different places of a group; each in the order of what it sends has lost nothing.
TEST_F(SwitchLossTest, RunsOfOtherChunksShowNoLoss) {
  receive_empty(0, {0, 1, 2, 3});
  for (const std::uint32_t number : {4U, 5U, 6U, 7U}) receive_chunk(0, number);
  for (const std::uint32_t number : {0U, 1U, 2U, 3U}) receive_chunk(1, number);
  receive_empty(1, {4, 5, 6, 7});
  EXPECT_EQ(0U, counters().losses_told);
}
TEST_F(SwitchLossTest, RunsThatWereSoonerAtOtherRanksShowNoLoss) {
  receive_empty(0, {4, 5, 6, 7});
  for (const std::uint32_t number : {0U, 1U, 2U, 3U}) receive_chunk(0, number);
  for (std::uint32_t number = 0; number < 8; ++number) receive_chunk(1, number);
  EXPECT_EQ(0U, counters().losses_told);
}
TEST_F(SwitchLossTest, WhatIsLostBehindAnotherRanksRunShowsByWhatFollows) {
  receive_empty(0, {4, 5, 6, 7});
  for (const std::uint32_t number : {0U, 1U, 2U, 3U}) receive_chunk(0, number);
  for (const std::uint32_t number : {0U, 1U, 2U, 3U, 5U, 6U, 7U}) receive_chunk(1, number);
  EXPECT_EQ(0U, counters().losses_told);
  receive(0, in_window(8), 1);
  sink_.clear();
  receive(1, in_window(8), 1);
  EXPECT_EQ((std::vector<std::pair<Endpoint, std::uint32_t>>{{host(1), 4}}), losses_told(sink_.sent()));
}
TEST_F(SwitchLossTest, ARunShowsWhatWasLostBeforeIt) {
  for (std::uint32_t number = 0; number < 8; ++number) receive_chunk(0, number);
  sink_.clear();
  receive_empty(1, {2, 6, 7});
  EXPECT_EQ((std::vector<std::pair<Endpoint, std::uint32_t>>{{host(1), 0}, {host(1), 1}}), losses_told(sink_.sent()));
}

TEST_F(SwitchLossTest, WhoIsOvertakenByThreeOfItsOwnIsTold) {
  for (std::uint32_t number = 0; number < 8; ++number) receive_chunk(0, number);
  receive_chunk(1, 0);
  for (const std::uint32_t number : {2U, 3U}) receive_chunk(1, number);
  EXPECT_TRUE(losses_told(sink_.sent()).empty()) << "two may have changed places with it";
  receive_chunk(1, 4);
  receive_chunk(1, 5);
  EXPECT_EQ(losses_told(sink_.sent()), (std::vector<std::pair<Endpoint, std::uint32_t>>{{host(1), 1}})) << "once";
  EXPECT_EQ(1U, counters().losses_told);
}

// Rank 1 has sent nothing, and rank 0 is not told of what it has given.
TEST_F(SwitchLossTest, AStragglerHasLostNothing) {
  for (std::uint32_t number = 0; number < 8; ++number) receive_chunk(0, number);
  EXPECT_TRUE(losses_told(sink_.sent()).empty());
}

// Nobody can know of a round that nobody has opened: it is noticed when the other rank opens it.
TEST_F(SwitchLossTest, TheFirstRanksLossesAreSeenOnceTheOthersFollow) {
  for (const std::uint32_t number : {1U, 2U}) receive_chunk(0, number);
  for (std::uint32_t number = 0; number < 3; ++number) receive_chunk(1, number);
  EXPECT_TRUE(losses_told(sink_.sent()).empty());
  for (std::uint32_t number = 3; number < 8; ++number) {
    receive_chunk(0, number);
    receive_chunk(1, number);
  }
  EXPECT_EQ(losses_told(sink_.sent()), (std::vector<std::pair<Endpoint, std::uint32_t>>{{host(0), 0}}));
}

TEST_F(SwitchTest, AddsAndMulticasts) {
  receive(0, chunk(0, 0), 3);
  EXPECT_EQ(Sums{}, take_results());
  EXPECT_EQ(1U, switch_.slots_in_use(epoch));
  receive(1, chunk(0, 0), 4);
  EXPECT_EQ((Sums{7, 7}), take_results());
  EXPECT_EQ(0U, switch_.slots_in_use(epoch));
}

TEST_F(SwitchTest, ARepeatOfACompleteChunkIsAnsweredToItsSenderAlone) {
  receive(0, chunk(0, 0), 3);
  receive(1, chunk(0, 0), 4);
  take_results();
  receive(0, chunk(0, 0), 3);
  ASSERT_EQ(1U, sink_.sent().size());
  EXPECT_EQ(host(0), sink_.sent()[0].to);
  EXPECT_EQ((Sums{7}), take_results());
  receive(0, chunk(0, 0), 3);  // that answer was lost, as others have shown it
  EXPECT_EQ((Sums{7}), take_results());
}

// A rank may be without values. Its packets are short, and the results are not.
TEST_F(SwitchTest, AShortRepeatIsAnsweredOncePerInterval) {
  const wire::switchml::ChunkHeader empty = chunk(0, 0);
  std::vector<std::byte> repeat(wire::switchml::chunk_packet_bytes(empty));
  wire::switchml::write_chunk_header(repeat, {wire::switchml::Type::contribution, 0, epoch, 100}, empty);
  wire::switchml::seal(repeat);
  receive(repeat, host(0));
  receive(repeat, host(0));  // told to wait, which does not keep the result away
  receive(1, chunk(0, 0), 4);
  take_results();
  for (int i = 0; i < 100; ++i) receive(repeat, host(0));
  EXPECT_EQ((Sums{4}), take_results());
  now_ += std::chrono::milliseconds(1);
  receive(repeat, host(0));
  EXPECT_EQ((Sums{4}), take_results());
}

// One notice to each rank for each slot, and one answer to each packet: not one notice to each rank for each packet.
TEST(SwitchMismatch, CostsAsManyDatagramsAsSumsDo) {
  constexpr std::uint32_t many = 32, slots = 4;
  switchml::SwitchJobConfig config{epoch, 256, slots, {}};
  for (std::uint32_t rank = 0; rank < many; ++rank) {
    config.members.push_back({100 + rank, endpoint_of(static_cast<std::uint8_t>(rank), 9)});
  }
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory(switchml::Switch::memory_bytes(config) / sizeof(Line));
  switchml::Switch aggregator;
  ASSERT_TRUE(aggregator.add_job(config, std::as_writable_bytes(std::span(memory))));
  RecordingSink sink;
  std::size_t packets = 0;
  for (std::uint32_t repeat = 0; repeat < 2; ++repeat) {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      for (std::uint32_t rank = 0; rank < many; ++rank) {
        wire::switchml::ChunkHeader header{
            .chunk = slot, .signature = rank < many / 2 ? 1U : 2U, .slot = static_cast<std::uint16_t>(slot), .elements = 4};
        std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
        wire::switchml::write_chunk_header(
            packet, {wire::switchml::Type::contribution, static_cast<std::uint16_t>(rank), epoch, 100 + rank}, header);
        wire::switchml::seal(packet);
        const RxView view{packet, config.members[rank].endpoint};
        aggregator.on_packets({&view, 1}, Time{std::chrono::seconds(1 + repeat)}, sink);
        sink.flush();
        ++packets;
      }
    }
    EXPECT_LE(sink.take().size(), 2 * many * slots);
  }
  EXPECT_EQ(packets - slots * many / 2, aggregator.job_counters(epoch)->dropped_mismatch);
}

// A result is lent to the sink until its flush(): the slot's next chunk in the same batch must not overwrite it.
TEST_F(SwitchTest, AResultLeavesBeforeItsSlotIsUsedAgain) {
  receive(0, chunk(0, 0), 3);
  receive(1, chunk(0, 0), 4);
  const std::vector<std::byte> expected = sink_.take()[0].bytes;
  const auto repeat = contribution(0, chunk(0, 0), 3), next = contribution(1, chunk(2, 0), 50);
  const RxView batch[] = {{repeat, host(0)}, {next, host(1)}};
  switch_.on_packets(batch, now_, sink_);
  auto sent = sink_.take();
  std::erase_if(sent, [](const Datagram& each) { return !each.multicast; });
  ASSERT_EQ(1U, sent.size());
  EXPECT_EQ(expected, sent[0].bytes);
}

TEST_F(SwitchTest, ARepeatOfAnIncompleteChunkIsToldWhomItWaitsForOncePerInterval) {
  receive(0, chunk(0, 0), 3);
  receive(0, chunk(0, 0), 3);
  receive(0, chunk(0, 0), 3);
  ASSERT_EQ(1U, sink_.sent().size());
  wire::switchml::Common common{};
  wire::switchml::WaitingPacket waiting{};
  ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_common(sink_.sent()[0].bytes, common));
  ASSERT_EQ(wire::switchml::Type::waiting, common.type);
  ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_waiting(sink_.sent()[0].bytes, common, waiting));
  EXPECT_FALSE(waiting.missing.contains(0));
  EXPECT_TRUE(waiting.missing.contains(1));
  EXPECT_EQ(1U, waiting.missing.size());
  EXPECT_EQ(1U, counters().repeats_silent);
  now_ += std::chrono::milliseconds(1);
  receive(0, chunk(0, 0), 3);
  EXPECT_EQ(2U, sink_.sent().size());
}

// docs/protocol-switchml.md has the trace on which Algorithm 3 goes wrong.
TEST_F(SwitchTest, CopiesOnePhaseLateAreNotCounted) {
  receive(0, chunk(0, 0), 1);
  receive(1, chunk(0, 0), 2);
  take_results();
  receive(0, chunk(1, 1), 10);  // w0 took the result; w1 has not yet
  receive(0, chunk(0, 0), 1);   // late copies
  EXPECT_EQ((Sums{3}), take_results());
  receive(0, chunk(1, 1), 10);
  EXPECT_EQ(Sums{}, take_results());
  receive(1, chunk(1, 1), 20);
  EXPECT_EQ((Sums{30, 30}), take_results());
}

TEST_F(SwitchTest, AnOlderIdentityIsDropped) {
  for (std::uint32_t number = 0; number < 3; ++number) {
    receive(0, chunk(number, static_cast<std::uint8_t>(number % 2)), 1);
    receive(1, chunk(number, static_cast<std::uint8_t>(number % 2)), 1);
  }
  take_results();
  receive(1, chunk(0, 0), 50);
  EXPECT_EQ(1U, counters().dropped_old);
  receive(1, chunk(2, 0), 50);
  EXPECT_EQ((Sums{2}), take_results());
}

TEST_F(SwitchTest, ANewerIdentityDoesNotDisplaceAnIncompleteOne) {
  receive(0, chunk(0, 0), 1);
  receive(1, chunk(2, 0), 1);
  EXPECT_EQ(1U, counters().dropped_early);
  receive(1, chunk(0, 0), 2);
  EXPECT_EQ((Sums{3, 3}), take_results());
}

TEST_F(SwitchTest, OneRankThatDoesNotKnowItsNextBlockMakesItUnknownForAll) {
  wire::switchml::ChunkHeader header = chunk(0, 0);
  header.ahead_operation = 0;
  header.ahead_chunk = 8;
  receive(0, header, 1, {120});
  receive(1, chunk(0, 0), 1);
  take_results();
  EXPECT_EQ(wire::switchml::no_ahead, last_.ahead_operation);
  EXPECT_TRUE(last_exponents_.empty());

  header.chunk = 1;
  header.version = 1;
  receive(0, header, 1, {120});
  header.ahead_chunk = 9;  // another block
  receive(1, header, 1, {130});
  take_results();
  EXPECT_EQ(wire::switchml::no_ahead, last_.ahead_operation);
}

TEST_F(SwitchTest, ExponentsOfTheSameBlockAreMaximized) {
  wire::switchml::ChunkHeader header = chunk(0, 0);
  header.ahead_operation = 1;
  header.ahead_chunk = 8;
  receive(0, header, 1, {120, 7, 254});
  receive(1, header, 1, {119, 8, 0});
  take_results();
  EXPECT_EQ(1U, last_.ahead_operation);
  EXPECT_EQ(8U, last_.ahead_chunk);
  EXPECT_EQ((std::vector<std::byte>{std::byte{120}, std::byte{8}, std::byte{254}}), last_exponents_);
}

TEST_F(SwitchTest, ForeignAndForgedPacketsAreCountedAndDropped) {
  const auto good = contribution(0, chunk(0, 0), 1);
  receive(good, host(1));  // another source
  EXPECT_EQ(1U, counters().dropped_source);
  wire::switchml::ChunkHeader far = chunk(0, 0);
  far.slot = 2 * switchml::windows;
  receive(0, far, 1);
  EXPECT_EQ(1U, counters().dropped_slot);
  std::map<std::string, Endpoint> sources;
  switch_.drop_sources(epoch)->add_to(sources);
  EXPECT_EQ((std::map<std::string, Endpoint>{{"dropped_slot", host(0)}, {"dropped_source", host(1)}}), sources);
  auto forged = good;
  const auto reseal = [&](auto change) {
    forged = good;
    change(forged.data());
    wire::switchml::seal(forged);
    receive(forged, host(0));
  };
  reseal([](std::byte* p) { p[2] = std::byte{9}; });  // rank
  EXPECT_EQ(1U, counters().dropped_rank);
  reseal([](std::byte* p) { p[16] = std::byte{1}; });  // rank epoch
  EXPECT_EQ(1U, counters().dropped_rank_epoch);
  reseal([](std::byte* p) { p[44] = std::byte{5}; });  // elements
  EXPECT_EQ(1U, counters().dropped_shape);
  forged = good;
  forged.back() ^= std::byte{1};
  receive(forged, host(0));
  EXPECT_EQ(1U, switch_.counters().malformed[static_cast<std::size_t>(wire::ParseError::checksum)]);
  EXPECT_EQ(0U, counters().contributions);
  EXPECT_TRUE(sink_.sent().empty());
}

// One rank reduces and the other broadcasts: their chunks are in the two windows, and do not meet in a slot.
TEST_F(SwitchTest, ACallOfTheOtherKindIsAMismatch) {
  for (const bool broadcast_is_first : {false, true}) {
    wire::switchml::ChunkHeader sum = chunk(0, 0), broadcast = chunk(0, 0);
    sum.operation = broadcast.operation = broadcast_is_first ? 2 : 1;
    sum.slot = broadcast_is_first ? 1 : 0;
    broadcast.slot = static_cast<std::uint16_t>(sum.slot + 2);
    broadcast.signature = 6;
    receive(broadcast_is_first ? 1U : 0U, broadcast_is_first ? broadcast : sum, 1);
    EXPECT_TRUE(sink_.sent().empty());
    receive(broadcast_is_first ? 0U : 1U, broadcast_is_first ? sum : broadcast, 1);
    ASSERT_EQ(ranks, sink_.sent().size()) << "each is told once";
    for (const Datagram& sent : sink_.sent()) {
      wire::switchml::Common common{};
      wire::switchml::MismatchPacket mismatch{};
      ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_common(sent.bytes, common));
      ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_mismatch(sent.bytes, common, mismatch));
      EXPECT_EQ(sum.operation, mismatch.operation);
      EXPECT_EQ(broadcast_is_first ? 1U : 0U, mismatch.first_rank);
      EXPECT_EQ(broadcast_is_first ? 0U : 1U, mismatch.second_rank);
    }
    sink_.clear();
  }
  EXPECT_EQ(0U, counters().chunks);
}

TEST_F(SwitchTest, ValuesOfAnotherLengthAreNotAdded) {
  receive(0, chunk(0, 0), 1);
  wire::switchml::ChunkHeader longer = chunk(0, 0);
  longer.elements = 5;
  std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(longer));
  wire::switchml::write_chunk_header(packet, {wire::switchml::Type::contribution, 1, epoch, 101}, longer);
  wire::switchml::seal(packet);
  receive(packet, host(1));
  EXPECT_EQ(1U, counters().dropped_shape);
  receive(1, chunk(0, 0), 2);
  EXPECT_EQ((Sums{3, 3}), take_results());
}

TEST_F(SwitchTest, LookAheadOfAnotherNumberOfBlocksIsUnknown) {
  wire::switchml::ChunkHeader header = chunk(0, 0);
  header.ahead_operation = 1;
  header.ahead_chunk = 8;
  receive(0, header, 1, {120, 7});
  receive(1, header, 1, {119});
  take_results();
  EXPECT_EQ(wire::switchml::no_ahead, last_.ahead_operation);
}

TEST_F(SwitchTest, StalledChunksAreToldOldestFirst) {
  wire::switchml::ChunkHeader later = chunk(7, 0);
  later.slot = 1;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    wire::switchml::ChunkHeader complete = chunk(1, 1);
    complete.slot = 1;
    receive(rank, complete, 1);
  }
  receive(1, chunk(3, 1), 1);
  receive(0, later, 1);
  receive(0, chunk(2, 0), 1);
  const auto all = switch_.stalled(epoch, 9);
  ASSERT_EQ(3U, all.size());
  EXPECT_EQ(2U, all[0].chunk);
  EXPECT_TRUE(all[0].missing.contains(1) && !all[0].missing.contains(0));
  EXPECT_EQ(3U, all[1].chunk);
  EXPECT_TRUE(all[1].missing.contains(0));
  EXPECT_EQ(7U, all[2].chunk);
  EXPECT_EQ(1U, all[2].slot);
  EXPECT_EQ(1U, switch_.stalled(epoch, 1).size());
  EXPECT_EQ(3U, switch_.slots_in_use(epoch));
}

TEST_F(SwitchTest, OfAJobThatIsNotThereNothingIsKnown) {
  EXPECT_EQ(nullptr, switch_.job_counters(epoch + 1));
  EXPECT_EQ(0U, switch_.slots_in_use(epoch + 1));
  EXPECT_TRUE(switch_.stalled(epoch + 1, 9).empty());
}

TEST_F(SwitchTest, AJobNeedsAllItsMemoryAndAnEpochOfItsOwn) {
  switchml::SwitchJobConfig config{epoch + 1, 256, 2, {{100, host(0)}}};
  std::vector<Line> memory(memory_.size());
  const auto bytes = std::as_writable_bytes(std::span(memory));
  EXPECT_FALSE(switch_.add_job(config, bytes.first(switchml::Switch::memory_bytes(256, 2, 1) - 1)));
  EXPECT_TRUE(switch_.add_job(config, bytes));
  EXPECT_FALSE(switch_.add_job(config, bytes));
}

TEST_F(SwitchTest, ProbesAreAnsweredUnlessTheyAreTooShort) {
  std::vector<std::byte> probe(100);
  wire::switchml::write_probe(probe, {{wire::switchml::Type::probe, 0, 0, 0}, 5});
  receive(probe, host(0));
  ASSERT_EQ(1U, sink_.sent().size());
  EXPECT_EQ(wire::switchml::probe_reply_bytes, sink_.sent()[0].bytes.size());
  wire::switchml::Common common;
  wire::switchml::ProbePacket reply;
  ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_common(sink_.sent()[0].bytes, common));
  ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_probe(sink_.sent()[0].bytes, common, reply));
  EXPECT_EQ(EndpointCookies().of(host(0)), reply.cookie);
  EXPECT_NE(EndpointCookies().of(host(1)), reply.cookie);
  EXPECT_NE(EndpointCookies({1, 2}).of(host(0)), reply.cookie);
  probe.resize(wire::switchml::common_bytes);
  wire::switchml::seal(probe);
  receive(probe, host(0));
  EXPECT_EQ(1U, sink_.sent().size());
  EXPECT_EQ(1U, switch_.counters().malformed[static_cast<std::size_t>(wire::ParseError::truncated)]);
}

TEST_F(SwitchTest, ACopyHasTheSameStateAndGoesItsOwnWay) {
  const auto state = [](const switchml::Switch& s) {
    std::vector<std::byte> bytes;
    s.append_state(bytes);
    return bytes;
  };
  receive(0, chunk(0, 0), 3);
  std::vector<Line> memory(memory_.size());
  switchml::Switch copy;
  copy = switch_;
  copy.move_memory(epoch, std::as_writable_bytes(std::span(memory)));
  EXPECT_EQ(state(switch_), state(copy));
  receive(1, chunk(0, 0), 4);
  EXPECT_NE(state(switch_), state(copy));
  EXPECT_EQ((Sums{7, 7}), take_results());
  wire::switchml::ChunkHeader masked = chunk(5, 1);
  masked.masks = true;
  masked.elements = 4;
  std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(masked));
  wire::switchml::write_chunk_header(packet, {wire::switchml::Type::contribution, 0, epoch, 100}, masked);
  packet.back() = std::byte{1};
  wire::switchml::seal(packet);
  const auto before = state(switch_);
  receive(packet, host(0));
  const auto with_masks = state(switch_);
  EXPECT_NE(before, with_masks);
  EXPECT_EQ(std::byte{1}, with_masks[with_masks.size() - 7]);  // then three slots that are not in use
  switch_ = std::move(copy);
  receive(1, chunk(0, 0), 10);
  EXPECT_EQ((Sums{13, 13}), take_results());
}

TEST_F(SwitchTest, AnUnknownJobIsAnsweredNoLongerThanAskedAndNotWithoutLimit) {
  switch_.remove_job(epoch);
  const auto packet = contribution(0, chunk(0, 0), 1);
  for (int i = 0; i < 1000; ++i) receive(packet, host(0));
  EXPECT_LE(sink_.sent().size(), 64U);
  ASSERT_FALSE(sink_.sent().empty());
  EXPECT_LE(sink_.sent()[0].bytes.size(), packet.size());
  EXPECT_EQ(1000U, switch_.counters().unknown_job);
}

TEST_F(SwitchTest, JobsDoNotSeeEachOther) {
  switchml::SwitchJobConfig other{epoch + 1, 256, 2, {{100, host(0)}, {101, host(1)}}};
  std::vector<Line> memory(memory_.size());
  ASSERT_TRUE(switch_.add_job(other, std::as_writable_bytes(std::span(memory))));
  receive(0, chunk(0, 0), 1);
  auto packet = contribution(1, chunk(0, 0), 100);
  store_le(packet.data() + 8, epoch + 1);
  wire::switchml::seal(packet);
  receive(packet, host(1));
  EXPECT_EQ(Sums{}, take_results());
  receive(1, chunk(0, 0), 2);
  EXPECT_EQ((Sums{3, 3}), take_results());
}

// ---- 16 bits: gathered by rank, and summed once all are there.

class NarrowTest : public SwitchTest {
 protected:
  static std::vector<std::byte> narrow(std::uint32_t rank, wire::switchml::ChunkHeader header,
                                       std::vector<std::uint16_t> values) {
    header.elements = static_cast<std::uint16_t>(values.size());
    std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
    wire::switchml::write_chunk_header(
        packet, {wire::switchml::Type::contribution, static_cast<std::uint16_t>(rank), epoch, 100 + rank}, header);
    std::memcpy(packet.data() + wire::switchml::chunk_header_bytes, values.data(), values.size() * 2);
    wire::switchml::seal(packet);
    return packet;
  }
  void receive_narrow(std::uint32_t rank, const wire::switchml::ChunkHeader& header, std::vector<std::uint16_t> values) {
    receive(narrow(rank, header, std::move(values)), host(rank));
  }

  // Of the results sent since the last call, which are alike: the values of one.
  std::vector<std::uint16_t> take_values(std::size_t destinations = 2) {
    std::vector<std::uint16_t> values;
    EXPECT_EQ(destinations, sink_.sent().size());
    for (const Datagram& sent : sink_.sent()) {
      EXPECT_EQ(sink_.sent()[0].bytes, sent.bytes);
      wire::switchml::Common common{};
      wire::switchml::ChunkPacket chunk{};
      EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_common(sent.bytes, common));
      EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_chunk(sent.bytes, common, chunk));
      last_ = chunk.header;
      values.resize(chunk.payload.size() / 2);
      std::memcpy(values.data(), chunk.payload.data(), chunk.payload.size());
    }
    sink_.clear();
    return values;
  }
};

using Values = std::vector<std::uint16_t>;

wire::switchml::ChunkHeader narrow_chunk(std::uint32_t number, std::uint8_t version, DType dtype = DType::float16) {
  wire::switchml::ChunkHeader header = chunk(number, version);
  header.dtype = dtype;
  return header;
}

TEST_F(NarrowTest, Float16IsSummedExactlyAndRoundedOnce) {
  receive_narrow(1, narrow_chunk(0, 0), {0x3c00, 0x0001, 0x7c00, 0x6800});  // 1, 2^-24, inf, 2048
  EXPECT_EQ(1U, switch_.slots_in_use(epoch));
  receive_narrow(0, narrow_chunk(0, 0), {0x3c00, 0x0001, 0xfc00, 0x3c00});
  EXPECT_EQ((Values{0x4000, 0x0002, 0x7e00, 0x6800}), take_values());
  EXPECT_EQ(DType::float16, last_.dtype);
  EXPECT_EQ(ReduceOp::sum, last_.op);
  EXPECT_FALSE(last_.masks);
}

// A job has room for what its ranks send at once; one value of each lies on a page or two of it.
// Else tenants take memory that their quotas do not show.
TEST(GatherMemory, AllThatAJobTakesIsCharged) {
  for (const PacketSecurity security : {PacketSecurity::none, PacketSecurity::tag, PacketSecurity::encrypt}) {
    for (const std::uint32_t many : {2U, 2U, 500U}) {  // what the process takes once is taken the first time
      switchml::SwitchJobConfig config{epoch, 64, 64, {}};
      config.security = security;
      seal::PacketKey::Bytes bytes{};
      bytes[0] = std::byte{1};
      const seal::PacketKey key(bytes);
      if (security != PacketSecurity::none) config.results = key;
      for (std::uint32_t rank = 0; rank < many; ++rank) {
        switchml::Member& member = config.members.emplace_back();
        member = {100 + rank, endpoint_of(static_cast<std::uint8_t>(rank), static_cast<std::uint16_t>(1 + rank / 256))};
        if (security != PacketSecurity::none) member.keys = {key, key};
      }
      struct alignas(64) Line {
        std::byte bytes[64];
      };
      std::vector<Line> memory(switchml::Switch::memory_bytes(config) / sizeof(Line));
      const std::size_t before = mallinfo2().uordblks;
      const auto job = switchml::Switch::make_job(config, std::as_writable_bytes(std::span(memory)));
      const std::size_t taken = mallinfo2().uordblks - before;
      if (many == 2) continue;
      EXPECT_LE(taken, switchml::Switch::total_bytes(64, 64, many, many, switchml::Switch::Role::alone) -
                           switchml::Switch::memory_bytes(config) + many * seal::link_bytes(security));
    }
  }
}

TEST(GatherMemory, IsTouchedAsFarAsItIsUsed) {
  constexpr std::uint32_t many = wire::switchml::max_workers, slots = 16, elements = 1024;
  const std::size_t bytes = switchml::Switch::memory_bytes(elements, slots, many);
  ASSERT_GT(bytes, std::size_t{slots} * many * elements * 2);
  void* const block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(MAP_FAILED, block);
  madvise(block, bytes, MADV_NOHUGEPAGE);
  {
    switchml::Switch lane;
    switchml::SwitchJobConfig config{epoch, elements, slots, {}};
    for (std::uint32_t rank = 0; rank < many; ++rank)
      config.members.push_back({100 + rank, endpoint_of(static_cast<std::uint8_t>(rank), 9)});
    ASSERT_TRUE(lane.add_job(config, {static_cast<std::byte*>(block), bytes}));
    RecordingSink sink;
    for (std::uint32_t rank = 0; rank < many; ++rank) {
      wire::switchml::ChunkHeader header{.signature = 5, .elements = 1, .dtype = DType::float32};
      std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
      wire::switchml::write_chunk_header(
          packet, {wire::switchml::Type::contribution, static_cast<std::uint16_t>(rank), epoch, 100 + rank}, header);
      wire::switchml::seal(packet);
      const RxView view{packet, config.members[rank].endpoint};
      lane.on_packets({&view, 1}, Time{}, sink);
      sink.flush();
    }
    EXPECT_EQ(many, sink.sent().size()) << "the sum, to each";
  }
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((bytes + page - 1) / page);
  ASSERT_EQ(0, mincore(block, bytes, resident.data()));
  const std::size_t used = many * std::size_t{64};  // a cache line for each rank's float
  EXPECT_LE(static_cast<std::size_t>(
                std::count_if(resident.begin(), resident.end(), [](unsigned char each) { return (each & 1) != 0; })),
            used / page + 4);
  munmap(block, bytes);
}

TEST_F(NarrowTest, AveragesAreDividedBeforeTheyAreRounded) {
  wire::switchml::ChunkHeader header = narrow_chunk(0, 0);
  header.op = ReduceOp::avg;
  receive_narrow(0, header, {0x7bff, 0x3c00});
  receive_narrow(1, header, {0x7bff, 0x4000});
  EXPECT_EQ((Values{0x7bff, 0x3e00}), take_values());  // the largest, whose sum is not finite; 1.5
  EXPECT_EQ(ReduceOp::avg, last_.op);
}

// Reduce, reduce-scatter, broadcast: who wants no values gets none, at first and whenever it asks again.
TEST_F(SwitchTest, AnAcknowledgementHasNoValuesAndTheExponentsOfAll) {
  wire::switchml::ChunkHeader quiet = chunk(0, 0), loud = chunk(0, 0);
  quiet.acknowledge_only = true;
  quiet.ahead_operation = loud.ahead_operation = 1;
  receive(0, loud, 3, {9, 1});
  receive(1, quiet, 4, {5, 7});
  const auto expect_acknowledgement = [&](const Datagram& sent) {
    wire::switchml::Common common{};
    wire::switchml::ChunkPacket packet{};
    ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_common(sent.bytes, common));
    ASSERT_EQ(wire::switchml::Type::acknowledgement, common.type);
    ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_chunk(sent.bytes, common, packet));
    EXPECT_EQ(host(1), sent.to);
    EXPECT_TRUE(packet.payload.empty());
    EXPECT_EQ(1, packet.header.ahead_operation);
    ASSERT_EQ(2U, packet.exponents.size());
    EXPECT_EQ(std::byte{9}, packet.exponents[0]);
    EXPECT_EQ(std::byte{7}, packet.exponents[1]);
  };
  ASSERT_EQ(2U, sink_.sent().size());
  for (const Datagram& sent : sink_.sent()) {
    if (sent.to == host(1)) expect_acknowledgement(sent);
  }
  EXPECT_EQ(Sums{7}, take_results());
  receive(1, quiet, 4, {5, 7});
  ASSERT_EQ(1U, sink_.sent().size());
  expect_acknowledgement(sink_.sent()[0]);
  sink_.clear();
  receive(0, loud, 3, {9, 1});
  EXPECT_EQ(Sums{7}, take_results());
  EXPECT_EQ(2U, counters().acknowledgements);
  EXPECT_EQ(4U, counters().results_sent);
  // The next round of the slot is nobody's business but its own.
  receive(0, chunk(1, 0), 1);
  receive(1, chunk(1, 0), 1);
  EXPECT_EQ((Sums{2, 2}), take_results());
}

TEST_F(SwitchTest, IntegersAreCombinedAsTheirHeaderSays) {
  const auto combined = [&](std::uint32_t number, ReduceOp op, std::int32_t a, std::int32_t b) {
    wire::switchml::ChunkHeader header = chunk(number, 0);
    header.op = op;
    receive(1, header, a);
    receive(0, header, b);
    const Sums results = take_results();
    EXPECT_EQ(op, last_.op);
    return results.empty() ? 0 : results[0];
  };
  EXPECT_EQ(-5, combined(0, ReduceOp::min, 3, -5));
  EXPECT_EQ(3, combined(1, ReduceOp::max, 3, -5));
  EXPECT_EQ(-15, combined(2, ReduceOp::product, 3, -5));
  EXPECT_EQ(3 & -5, combined(3, ReduceOp::bit_and, 3, -5));
  EXPECT_EQ(3 | -5, combined(4, ReduceOp::bit_or, 3, -5));
  EXPECT_EQ(3 ^ -5, combined(5, ReduceOp::bit_xor, 3, -5));
  wire::switchml::ChunkHeader header = chunk(6, 0);
  receive(0, header, 1);
  header.op = ReduceOp::max;
  receive(1, header, 1);
  EXPECT_EQ(1U, counters().dropped_shape) << "another operation under the same signature";
}

// bfloat16: in float32, 2^24 + 1 - 2^24 is 0, and 2^24 - 2^24 + 1 is 1: ranks decide, not arrivals.
TEST_F(NarrowTest, RankOrderDecidesNotTheOrderOfArrival) {
  switchml::SwitchJobConfig config{epoch + 1, 256, 1, {}};
  for (std::uint32_t rank = 0; rank < 3; ++rank) config.members.push_back({100 + rank, host(rank)});
  std::vector<Line> memory(switchml::Switch::memory_bytes(256, 1, 3) / sizeof(Line));
  ASSERT_TRUE(switch_.add_job(config, std::as_writable_bytes(std::span(memory))));
  std::vector<std::uint32_t> order = {0, 1, 2};
  const Values of_rank[] = {{0x4b80, 0x4b80}, {0x3f80, 0xcb80}, {0xcb80, 0x3f80}};
  std::uint32_t number = 0;
  std::vector<std::byte> first;
  do {
    for (const std::uint32_t rank : order) {
      wire::switchml::ChunkHeader header = narrow_chunk(number, static_cast<std::uint8_t>(number % 2), DType::bfloat16);
      auto packet = narrow(rank, header, of_rank[rank]);
      store_le(packet.data() + 8, epoch + 1);
      wire::switchml::seal(packet);
      receive(packet, host(rank));
    }
    EXPECT_EQ((Values{0, 0x3f80}), take_values(3));
    ++number;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(6U, number);
}

TEST_F(NarrowTest, RepeatsAndLateCopiesChangeNothing) {
  receive_narrow(0, narrow_chunk(0, 0), {0x3c00});
  receive_narrow(0, narrow_chunk(0, 0), {0x4000});  // a repeat, which lies: the first counts
  EXPECT_EQ(1U, counters().repeats_waiting);
  sink_.clear();
  receive_narrow(1, narrow_chunk(0, 0), {0x3c00});
  EXPECT_EQ(Values{0x4000}, take_values());
  receive_narrow(0, narrow_chunk(0, 0), {0x7bff});
  EXPECT_EQ(Values{0x4000}, take_values(1));  // as before, to its sender alone
  receive_narrow(0, narrow_chunk(1, 1), {0x4400});
  receive_narrow(1, narrow_chunk(0, 0), {0x7bff});
  EXPECT_EQ(Values{0x4000}, take_values(1));  // the other version gathers meanwhile
  receive_narrow(1, narrow_chunk(1, 1), {0x4400});
  EXPECT_EQ(Values{0x4800}, take_values());
}

// The place where a slot gathers is one for both versions.
TEST_F(NarrowTest, ASlotGathersOneRoundAtATime) {
  receive_narrow(0, narrow_chunk(0, 0), {0x3c00});
  receive_narrow(0, narrow_chunk(1, 1), {0x7bff});  // no correct worker sends that
  EXPECT_EQ(1U, counters().dropped_early);
  receive_narrow(1, narrow_chunk(0, 0), {0x3c00});
  EXPECT_EQ(Values{0x4000}, take_values());
  receive(0, chunk(1, 1), 3);  // other values than those may wait in the other version
  receive_narrow(0, narrow_chunk(2, 0), {0x3c00});
  EXPECT_EQ(1U, counters().dropped_early);
  EXPECT_EQ(2U, switch_.slots_in_use(epoch));
}

TEST_F(NarrowTest, ContributionsThatDoNotFitTheFirstAreDropped) {
  receive_narrow(0, narrow_chunk(0, 0), {0x3c00, 0x3c00});
  receive_narrow(1, narrow_chunk(0, 0), {0x3c00});
  receive_narrow(1, narrow_chunk(0, 0), {0x3c00, 0x3c00, 0x3c00});
  receive_narrow(1, narrow_chunk(0, 0, DType::bfloat16), {0x3c00, 0x3c00});
  receive(1, chunk(0, 0), 1);
  wire::switchml::ChunkHeader average = narrow_chunk(0, 0);
  average.op = ReduceOp::avg;
  receive_narrow(1, average, {0x3c00, 0x3c00});
  EXPECT_EQ(5U, counters().dropped_shape);
  receive_narrow(1, narrow_chunk(0, 0), {0x3c00, 0x3c00});
  EXPECT_EQ((Values{0x4000, 0x4000}), take_values());
}

// As many bytes as 256 int32, and no more.
TEST_F(NarrowTest, APacketHasTwiceAsManyElements) {
  receive_narrow(0, narrow_chunk(0, 0), Values(513, 0x3c00));
  EXPECT_EQ(1U, counters().dropped_shape);
  for (const std::uint32_t rank : {0U, 1U}) receive_narrow(rank, narrow_chunk(0, 0), Values(512, 0x3c00));
  EXPECT_EQ(Values(512, 0x4000), take_values());
}

TEST_F(NarrowTest, ACopyTakesWhatIsGatheredAlong) {
  receive_narrow(0, narrow_chunk(0, 0), {0x3c00});
  switchml::Switch copy(switch_);
  std::vector<Line> memory(memory_.size());
  copy.move_memory(epoch, std::as_writable_bytes(std::span(memory)));
  const auto state_of = [](const switchml::Switch& of) {
    std::vector<std::byte> state;
    of.append_state(state);
    return state;
  };
  EXPECT_EQ(state_of(switch_), state_of(copy));
  receive_narrow(1, narrow_chunk(0, 0), {0x3c00});
  EXPECT_EQ(Values{0x4000}, take_values());
  EXPECT_NE(state_of(switch_), state_of(copy));
  const auto packet = narrow(1, narrow_chunk(0, 0), {0x4000});
  const RxView view{packet, host(1)};
  copy.on_packets({&view, 1}, now_, sink_);
  sink_.flush();
  EXPECT_EQ(Values{0x4200}, take_values());
}

// ---- Algorithm 3 as published, without payloads: which contributions are in the result that a worker receives.

struct Published {
  explicit Published(bool check) : chunk_check(check) {}

  using Contribution = std::pair<int, int>;  // worker, chunk
  struct Version {
    int chunk = -1;
    std::set<int> seen;
    int count = 0;
    std::multiset<Contribution> pool;
  };

  // The result that is multicast or forwarded, if any.
  std::optional<std::multiset<Contribution>> on_packet(int worker, int number) {
    Version& slot = versions[static_cast<std::size_t>(number % 2)];
    Version& other = versions[static_cast<std::size_t>(1 - number % 2)];
    if (chunk_check && slot.chunk != -1 && slot.chunk != number && (number < slot.chunk || slot.count != 0))
      return std::nullopt;
    if (!slot.seen.contains(worker)) {  // l. 5
      slot.chunk = number;
      slot.seen.insert(worker);                // l. 6
      other.seen.erase(worker);                // l. 7
      slot.count = (slot.count + 1) % 2;       // l. 8
      if (slot.count == 1) slot.pool.clear();  // l. 9-10
      slot.pool.insert({worker, number});      // l. 12
      if (slot.count == 0) return slot.pool;   // l. 13-15
    } else if (slot.count == 0) {              // l. 19-21
      return slot.pool;
    }
    return std::nullopt;
  }

  bool chunk_check;
  std::array<Version, 2> versions;
};

TEST(PublishedAlgorithm3, CountsACopyOnePhaseLateTwice) {
  for (const bool chunk_check : {false, true}) {
    Published published(chunk_check);
    EXPECT_FALSE(published.on_packet(0, 0));
    EXPECT_TRUE(published.on_packet(1, 0));  // w0 takes the result
    EXPECT_FALSE(published.on_packet(0, 1));
    published.on_packet(0, 0);                      // a copy of w0c0: clears w0's bit of the other version (l. 7)
    const auto result = published.on_packet(0, 1);  // a copy of w0c1
    ASSERT_TRUE(result.has_value()) << "chunk check " << chunk_check;
    EXPECT_EQ((std::multiset<Published::Contribution>{{0, 1}, {0, 1}}), *result) << "w0 receives twice its own chunk";
  }
}

// Five ranks, of which the last has not joined the group.
class SwitchGroupTest : public SwitchTest {
 protected:
  static constexpr std::uint32_t members = 5, slots = 2;

  void SetUp() override { add_job(true, members - 1); }
  void add_job(bool with_group, std::uint32_t listeners, bool within_host = false) {
    switch_.remove_job(epoch);
    memory_.assign(switchml::Switch::memory_bytes(256, slots, members) / 64 + 1, {});
    switchml::SwitchJobConfig config{epoch, 256, slots, {}};
    if (with_group) config.group = group;
    config.group_within_host = within_host;
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      config.members.push_back({100 + rank, host(rank), rank < listeners});
    }
    ASSERT_TRUE(switch_.add_job(config, std::as_writable_bytes(std::span(memory_))));
  }
  void contribute(std::uint32_t rank, std::uint32_t round) {
    receive(rank, {.chunk = round, .signature = 5, .slot = 0, .version = static_cast<std::uint8_t>(round % 2)}, 1);
  }
  // Whom the round's result went to.
  std::vector<Endpoint> finish(std::uint32_t round) {
    sink_.clear();
    for (std::uint32_t rank = 0; rank < members; ++rank) contribute(rank, round);
    std::vector<Endpoint> to;
    for (const Datagram& sent : sink_.sent()) to.push_back(sent.to);
    return to;
  }
  // Rounds until the result goes elsewhere than to `before`, if `rank` repeats its contribution to one in `out_of` of them.
  std::uint32_t rounds_until_taken_out(std::uint32_t rank, std::uint32_t out_of, std::uint32_t most) {
    for (std::uint32_t round = 0; round < most; ++round) {
      finish(round);
      if (counters().group_unheard != 0) return round;
      if (round % out_of == 0) contribute(rank, round);
    }
    return most;
  }

  const Endpoint group = endpoint_of(239, 1);
};

TEST_F(SwitchGroupTest, OneResultForAllThatListen) {
  EXPECT_EQ(finish(0), (std::vector<Endpoint>{group, host(4)}));
  EXPECT_EQ(2U, counters().results_sent);
  EXPECT_EQ(1U, counters().results_to_group);
}

TEST_F(SwitchGroupTest, ARepeatIsAnsweredToItsRankAlone) {
  finish(0);
  sink_.clear();
  contribute(2, 0);
  ASSERT_EQ(1U, sink_.sent().size());
  EXPECT_EQ(host(2), sink_.sent()[0].to);
  EXPECT_EQ(1U, counters().results_to_group);
}

TEST_F(SwitchGroupTest, WithoutAGroupOrListenersEachRankHasItsOwn) {
  const std::vector<Endpoint> each = {host(0), host(1), host(2), host(3), host(4)};
  add_job(false, members);
  EXPECT_EQ(finish(0), each);
  for (const std::uint32_t listeners : {0U, 1U}) {
    add_job(true, listeners);
    EXPECT_EQ(finish(0), each);
    EXPECT_EQ(0U, counters().results_to_group);
  }
  add_job(true, members);
  EXPECT_EQ(finish(0), std::vector<Endpoint>{group});
}

TEST_F(SwitchGroupTest, WhoHearsNothingIsTakenOut) {
  const std::uint32_t rounds = rounds_until_taken_out(2, 1, 1000);
  EXPECT_GE(rounds, 4 * slots) << "a few windows may be lost";
  EXPECT_LE(rounds, 8 * slots + 8);
  EXPECT_EQ(finish(rounds + 1), (std::vector<Endpoint>{group, host(2), host(4)}));
  EXPECT_EQ(1U, counters().group_unheard);
  // Once out it may ask as it likes.
  for (std::uint32_t round = rounds + 2; round < rounds + 100; ++round) {
    finish(round);
    contribute(2, round);
  }
  EXPECT_EQ(1U, counters().group_unheard);
}

TEST_F(SwitchGroupTest, WhoLosesAThirdStays) {
  EXPECT_EQ(1000U, rounds_until_taken_out(2, 3, 1000));
}

TEST_F(SwitchGroupTest, ManyRepeatsOfOneContributionCountOnce) {
  for (std::uint32_t round = 0; round < 100; ++round) {
    finish(round);
    for (int repeats = 0; repeats < 10 && round % 3 == 0; ++repeats) contribute(2, round);
  }
  EXPECT_EQ(0U, counters().group_unheard);
}

TEST_F(SwitchGroupTest, OnOneHostOnlyWhoAsksForEachResultIsTakenOut) {
  add_job(true, members - 1, true);
  for (std::uint32_t round = 0; round < 1000; ++round) {
    finish(round);
    if (round % 5 != 0) contribute(2, round);
  }
  EXPECT_EQ(0U, counters().group_unheard);
  add_job(true, members - 1, true);
  EXPECT_LE(rounds_until_taken_out(2, 1, 1000), 8 * slots + 8);
}

TEST_F(SwitchGroupTest, NobodyIsLeftInAGroupThatNobodyHears) {
  std::uint32_t round = 0;
  for (; counters().group_unheard < 3 && round < 1000; ++round) {
    finish(round);
    for (std::uint32_t rank = 0; rank < members; ++rank) contribute(rank, round);
  }
  EXPECT_EQ(finish(round), (std::vector<Endpoint>{host(0), host(1), host(2), host(3), host(4)}));
  EXPECT_EQ(3U, counters().group_unheard) << "for the last one there is no group any more";
}

// The results before it in the batch are still referred to by the sink, with the destinations that they had.
TEST_F(SwitchGroupTest, NothingOnItsWayChangesDestinations) {
  // Compares at flush() what it was given with what that was: RecordingSink looks at flush() alone.
  class Holding final : public Sink {
   public:
    std::span<std::byte> datagram(const Endpoint&, std::size_t bytes) override {
      scratch_.resize(bytes);
      return scratch_;
    }
    void multicast(std::span<const std::byte>, std::span<const Endpoint> to) override {
      held_.emplace_back(to, std::vector<Endpoint>(to.begin(), to.end()));
    }
    void flush() override {
      for (const auto& [to, then] : held_) EXPECT_TRUE(std::equal(to.begin(), to.end(), then.begin(), then.end()));
      held_.clear();
    }

   private:
    std::vector<std::byte> scratch_;
    std::vector<std::pair<std::span<const Endpoint>, std::vector<Endpoint>>> held_;
  } sink;
  const std::uint32_t rounds = rounds_until_taken_out(2, 1, 1000);
  SetUp();
  for (std::uint32_t round = 0; round < rounds; ++round) {
    finish(round);
    if (round + 1 < rounds) contribute(2, round);
  }
  std::vector<std::vector<std::byte>> packets;
  const wire::switchml::ChunkHeader next{
      .chunk = rounds, .signature = 5, .slot = 0, .version = static_cast<std::uint8_t>(rounds % 2)};
  const wire::switchml::ChunkHeader last{
      .chunk = rounds - 1, .signature = 5, .slot = 0, .version = static_cast<std::uint8_t>((rounds - 1) % 2)};
  for (std::uint32_t rank = 0; rank < members; ++rank) packets.push_back(contribution(rank, next, 1));
  for (const auto& repeat : {last, next}) packets.push_back(contribution(2, repeat, 1));
  std::vector<RxView> views;
  for (std::size_t i = 0; i < packets.size(); ++i) {
    views.push_back({packets[i], host(i < members ? static_cast<std::uint32_t>(i) : 2)});
  }
  switch_.on_packets(views, now_, sink);
  sink.flush();
  EXPECT_EQ(1U, counters().group_unheard);
}

}  // namespace
}  // namespace netsum::testing
