// The chip profile's data plane with hand-made packets.

#include "protocol/switchml/chip_switch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "support/recording_sink.h"
#include "support/virtual_network.h"

namespace netsum::testing {
namespace {

constexpr std::uint64_t epoch = 77;
constexpr std::uint32_t ranks = 3, slots = 2, elements = 64;

// What a rank sends for its `number`th round in a slot.
struct Sent {
  std::uint32_t rank = 0, number = 0;
  std::int32_t value = 0;
  std::uint16_t exponent = 0;
  std::uint16_t slot = 0;
};

class ChipSwitchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    memory_.resize(switchml::ChipSwitch::memory_bytes(elements, slots) / sizeof(Line));
    ASSERT_TRUE(switch_.add_job(config_of(ranks, elements), std::as_writable_bytes(std::span(memory_))));
  }

  static Endpoint host(std::uint32_t rank) { return endpoint_of(static_cast<std::uint8_t>(rank), 9); }
  static switchml::SwitchJobConfig config_of(std::uint32_t members, std::uint32_t packet_elements) {
    switchml::SwitchJobConfig config{epoch, packet_elements, slots, {}};
    for (std::uint32_t rank = 0; rank < members; ++rank) config.members.push_back({100 + rank, host(rank)});
    return config;
  }

  static wire::chip::Header header_of(const Sent& sent) {
    return {.member = static_cast<std::uint8_t>(sent.rank),
            .version = static_cast<std::uint8_t>(sent.number % 2),
            .slot = sent.slot,
            .rank = static_cast<std::uint16_t>(500 + sent.rank),
            .job_epoch = epoch,
            .round = sent.number / 2,
            .exponents = {sent.exponent, static_cast<std::uint16_t>(sent.exponent / 2)},
            .echoed = {1000 + sent.rank, sent.number, 5}};
  }
  static std::vector<std::byte> packet_of(const wire::chip::Header& header, std::int32_t value,
                                          std::uint32_t of_elements = elements) {
    std::vector<std::byte> packet(wire::chip::packet_bytes(of_elements));
    wire::chip::write_header(packet, header);
    for (std::uint32_t i = 0; i < of_elements; ++i) {
      store_be(packet.data() + wire::chip::header_bytes + 4 * i, static_cast<std::uint32_t>(value) + i);
    }
    return packet;
  }
  void receive(const std::vector<std::byte>& packet, const Endpoint& source) {
    const RxView view{packet, source};
    switch_.on_packets({&view, 1}, Time{}, sink_);
    sink_.flush();
  }
  void receive(const Sent& sent) { receive(packet_of(header_of(sent), sent.value), host(sent.rank)); }

  struct Result {
    Endpoint to;
    wire::chip::Header header;
    std::int32_t sum = 0;
  };
  std::vector<Result> take_results() {
    std::vector<Result> results;
    for (const Datagram& sent : sink_.take()) {
      wire::chip::Packet packet;
      EXPECT_EQ(wire::ParseError::none, wire::chip::parse(sent.bytes, packet));
      EXPECT_EQ(wire::chip::Type::result, packet.header.type);
      const auto word = [&](std::size_t i) { return load_be<std::uint32_t>(packet.payload.data() + 4 * i); };
      EXPECT_EQ(word(0) + ranks * (elements - 1), word(elements - 1)) << "all of the payload is summed";
      results.push_back({sent.to, packet.header, static_cast<std::int32_t>(word(0))});
    }
    return results;
  }
  void complete(std::uint32_t number) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) receive({.rank = rank, .number = number, .value = 1});
    take_results();
  }

  const switchml::JobCounters& counters() { return *switch_.job_counters(epoch); }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  switchml::ChipSwitch switch_;
  std::vector<Line> memory_;
  RecordingSink sink_;
};

TEST_F(ChipSwitchTest, AddsAndSendsToAll) {
  receive({.rank = 2, .value = -5, .exponent = 100});
  receive({.rank = 0, .value = 7, .exponent = 102});
  EXPECT_TRUE(take_results().empty());
  EXPECT_EQ(1U, switch_.slots_in_use(epoch));
  receive({.rank = 1, .value = 40, .exponent = 101});
  const auto results = take_results();
  ASSERT_EQ(ranks, results.size());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(host(rank), results[rank].to);
    EXPECT_EQ(42, results[rank].sum);
    wire::chip::Header expected = header_of({.rank = 1});  // the last one's, echoed
    expected.type = wire::chip::Type::result;
    expected.exponents = {102, 51};
    EXPECT_EQ(expected, results[rank].header);
  }
  EXPECT_EQ(0U, switch_.slots_in_use(epoch));
  EXPECT_EQ(3U, counters().contributions);
  EXPECT_EQ(1U, counters().chunks);
  EXPECT_EQ(3U, counters().results_sent);
}

TEST_F(ChipSwitchTest, TheNextRoundOfAVersionStartsAnew) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) receive({.rank = rank, .value = 9, .exponent = 200});
  complete(1);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) receive({.rank = rank, .number = 2, .value = 1, .exponent = 3});
  const auto results = take_results();
  ASSERT_EQ(ranks, results.size());
  EXPECT_EQ(3, results[0].sum);
  EXPECT_EQ(3, results[0].header.exponents[0]);
  EXPECT_EQ(1U, results[0].header.round);
}

TEST_F(ChipSwitchTest, ARepeatOfACompleteRoundIsAnsweredToItsSenderAlone) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) receive({.rank = rank, .value = 5, .exponent = 9});
  take_results();
  receive({.rank = 1, .value = 5, .exponent = 9});
  auto results = take_results();
  ASSERT_EQ(1U, results.size());
  EXPECT_EQ(host(1), results[0].to);
  EXPECT_EQ(15, results[0].sum);
  EXPECT_EQ(9, results[0].header.exponents[0]);
  receive({.rank = 0, .number = 1, .value = 1});  // others may be one round ahead
  receive({.rank = 2, .value = 5, .exponent = 9});
  results = take_results();
  ASSERT_EQ(1U, results.size());
  EXPECT_EQ(15, results[0].sum);
  EXPECT_EQ(2U, counters().repeats_answered);
}

TEST_F(ChipSwitchTest, OtherRepeatsAndLateCopiesAreSilent) {
  receive({.rank = 0, .value = 5});
  receive({.rank = 0, .value = 5});
  EXPECT_EQ(1U, counters().repeats_silent);
  complete(0);
  complete(1);
  receive({.rank = 0, .number = 2, .value = 1});
  receive({.rank = 1, .number = 0, .value = 50});
  // With the sums of now, as nobody waits for it: rank 0 had the round between, to which rank 1 contributed with this
  // result.
  EXPECT_EQ(1U, counters().repeats_answered);
  EXPECT_EQ(1U, sink_.take().size());
  for (std::uint32_t rank = 1; rank < ranks; ++rank) receive({.rank = rank, .number = 2, .value = 1});
  EXPECT_EQ(3, take_results().at(0).sum);
  receive({.rank = 1, .number = 0, .value = 50});
  EXPECT_EQ(1U, counters().dropped_old);
  EXPECT_TRUE(take_results().empty());
}

TEST_F(ChipSwitchTest, ANewerRoundDoesNotEvictAnOpenOne) {
  receive({.rank = 0, .value = 5});
  receive({.rank = 1, .number = 2, .value = 50});
  EXPECT_EQ(1U, counters().dropped_early);
  receive({.rank = 1, .value = 5});
  receive({.rank = 2, .value = 5});
  EXPECT_EQ(15, take_results().at(0).sum);
}

TEST_F(ChipSwitchTest, SlotsAndVersionsAreApart) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    receive({.rank = rank, .number = 0, .value = 1, .slot = 0});
    receive({.rank = rank, .number = 0, .value = 100, .slot = 1});
  }
  const auto results = take_results();
  ASSERT_EQ(2 * ranks, results.size());
  EXPECT_EQ(3, results[0].sum);
  EXPECT_EQ(300, results[ranks].sum);
  EXPECT_EQ(1, results[ranks].header.slot);
}

// A result is lent to the sink until its flush(): the slot's next round in the same batch must not overwrite it.
TEST_F(ChipSwitchTest, AResultLeavesBeforeItsSlotIsUsedAgain) {
  receive({.rank = 0, .value = 5});
  receive({.rank = 1, .value = 5});
  const auto last = packet_of(header_of({.rank = 2}), 5), next = packet_of(header_of({.rank = 0, .number = 2}), 50);
  const RxView batch[] = {{last, host(2)}, {next, host(0)}};
  switch_.on_packets(batch, Time{}, sink_);
  EXPECT_EQ(15, take_results().at(0).sum);
}

TEST_F(ChipSwitchTest, WhatIsNoContributionOfThisJobIsDroppedSilently) {
  auto header = header_of({});
  header.member = ranks;
  receive(packet_of(header, 1), host(0));
  EXPECT_EQ(1U, counters().dropped_rank);
  receive(packet_of(header_of({}), 1), host(1));
  EXPECT_EQ(1U, counters().dropped_source);
  receive({.slot = slots});
  EXPECT_EQ(1U, counters().dropped_slot);
  receive(packet_of(header_of({}), 1, 256), host(0));
  EXPECT_EQ(1U, counters().dropped_shape);
  std::map<std::string, Endpoint> sources;
  switch_.drop_sources(epoch)->add_to(sources);
  EXPECT_EQ(4U, sources.size());
  EXPECT_EQ(host(1), sources["dropped_source"]);
  header = header_of({});
  header.job_epoch = epoch + 1;
  receive(packet_of(header, 1), host(0));
  EXPECT_EQ(1U, switch_.counters().unknown_job);
  header = header_of({});
  header.type = wire::chip::Type::result;
  receive(packet_of(header, 1), host(0));
  EXPECT_EQ(1U, switch_.counters().unexpected_type);
  receive(std::vector<std::byte>(5), host(0));
  EXPECT_EQ(1U, switch_.counters().malformed[static_cast<std::size_t>(wire::ParseError::truncated)]);
  EXPECT_EQ(4U, outcomes(counters()));
  EXPECT_EQ(4U, counters().packets);
  EXPECT_EQ(3U, outcomes(switch_.counters()));
  EXPECT_TRUE(sink_.take().empty());
}

TEST_F(ChipSwitchTest, ReportsWhatAnOpenRoundLacks) {
  receive({.rank = 1, .number = 0, .value = 1, .slot = 1});
  const auto stalled = switch_.stalled(epoch, 8);
  ASSERT_EQ(1U, stalled.size());
  EXPECT_EQ(1001U, stalled[0].operation);
  EXPECT_EQ(1U, stalled[0].slot);
  EXPECT_TRUE(stalled[0].missing.contains(0));
  EXPECT_FALSE(stalled[0].missing.contains(1));
  EXPECT_TRUE(stalled[0].missing.contains(2));
}

TEST_F(ChipSwitchTest, JobsThatAChipCannotServeAreNoJobs) {
  std::vector<Line> memory(switchml::ChipSwitch::memory_bytes(256, slots) / sizeof(Line));
  const auto room = std::as_writable_bytes(std::span(memory));
  EXPECT_NE(nullptr, switchml::ChipSwitch::make_job(config_of(31, 256), room));
  EXPECT_EQ(nullptr, switchml::ChipSwitch::make_job(config_of(32, 256), room));
  EXPECT_EQ(nullptr, switchml::ChipSwitch::make_job(config_of(2, 128), room));
  EXPECT_EQ(nullptr, switchml::ChipSwitch::make_job(config_of(2, 256), room.first(room.size() - 1)));
}

TEST_F(ChipSwitchTest, ThirtyOneRanksAreABitEach) {
  std::vector<Line> memory(switchml::ChipSwitch::memory_bytes(elements, slots) / sizeof(Line));
  switch_.remove_job(epoch);
  ASSERT_TRUE(switch_.add_job(config_of(31, elements), std::as_writable_bytes(std::span(memory))));
  for (std::uint32_t rank = 0; rank < 31; ++rank) {
    EXPECT_EQ(0U, counters().chunks);
    receive({.rank = rank, .value = 1});
  }
  EXPECT_EQ(1U, counters().chunks);
  EXPECT_EQ(31U, sink_.take().size());
}

// Below a parent, whose fifth member it is; its own members are ranks 6 and 7, and a switch with ranks 8 and 9.
class ChipInATree : public ChipSwitchTest {
 protected:
  void SetUp() override {
    ChipSwitchTest::SetUp();
    switch_.remove_job(epoch);
    switchml::SwitchJobConfig config = config_of(ranks, elements);
    switchml::TreePlace& tree = config.tree.emplace();
    tree.parent = parent;
    tree.number = 4;
    tree.is_switch = {false, false, true};
    tree.below.resize(ranks);
    for (std::uint32_t rank = 6; rank < 10; ++rank) tree.below[std::min(2U, rank - 6)].insert(rank);
    ASSERT_TRUE(switch_.add_job(config, std::as_writable_bytes(std::span(memory_))));
  }

  // The sums that have gone upstream since.
  std::vector<Datagram> take_sums() {
    std::vector<Datagram> sums = sink_.take();
    for (const Datagram& sum : sums) EXPECT_EQ(parent, sum.to);
    return sums;
  }
  std::vector<std::byte> result_of(std::uint32_t number, std::int32_t value, std::uint16_t exponent) {
    wire::chip::Header header = header_of({.rank = 1, .number = number, .exponent = exponent});
    header.type = wire::chip::Type::result;
    return packet_of(header, value);
  }
  void gather(std::uint32_t number) {
    for (std::uint32_t member = 0; member < ranks; ++member)
      receive({.rank = member, .number = number, .value = 5, .exponent = 7});
  }

  Endpoint parent = host(200);
};

TEST_F(ChipInATree, SendsOneSumUpstreamAndPassesItsResultDown) {
  gather(0);
  auto sums = take_sums();
  ASSERT_EQ(1U, sums.size());
  wire::chip::Packet sum;
  ASSERT_EQ(wire::ParseError::none, wire::chip::parse(sums[0].bytes, sum));
  wire::chip::Header expected = header_of({.rank = 2, .exponent = 7});  // of the last one, but for the bit
  expected.member = 4;
  EXPECT_EQ(expected, sum.header);
  EXPECT_EQ(15U, load_be<std::uint32_t>(sum.payload.data()));
  EXPECT_EQ(1U, switch_.slots_in_use(epoch)) << "until the result is there";
  EXPECT_TRUE(switch_.stalled(epoch, 8).empty()) << "it lacks nobody";

  const auto result = result_of(0, 99, 70);
  receive(result, parent);
  const auto sent = sink_.take();
  ASSERT_EQ(ranks, sent.size());
  for (std::uint32_t member = 0; member < ranks; ++member) {
    EXPECT_EQ(host(member), sent[member].to);
    EXPECT_EQ(result, sent[member].bytes);
  }
  EXPECT_EQ(0U, switch_.slots_in_use(epoch));
  EXPECT_EQ(1U, counters().sums_sent);
  EXPECT_EQ(1U, counters().results_taken);
}

// As long as no member has the result, all repeat: one repeat is enough.
TEST_F(ChipInATree, TheFirstMembersRepeatsGoUpstream) {
  gather(0);
  const auto first = take_sums();
  receive({.rank = 1, .value = 5, .exponent = 7});
  receive({.rank = 2, .value = 5, .exponent = 7});
  EXPECT_TRUE(take_sums().empty());
  receive({.rank = 0, .value = 5, .exponent = 7});
  const auto again = take_sums();
  ASSERT_EQ(1U, again.size());
  const auto payload_of = [](const Datagram& sum) {
    return std::vector<std::byte>(sum.bytes.begin() + wire::chip::header_bytes, sum.bytes.end());
  };
  EXPECT_EQ(payload_of(first.at(0)), payload_of(again[0]));
  EXPECT_EQ(2U, counters().repeats_silent);
  EXPECT_EQ(1U, counters().repeats_passed_up);
  EXPECT_EQ(1U, counters().sums_repeated);
}

TEST_F(ChipInATree, RepeatsOfAClosedRoundAreAnsweredWithTheParentsResult) {
  gather(0);
  receive(result_of(0, 99, 70), parent);
  EXPECT_EQ(1 + ranks, sink_.take().size());
  receive({.rank = 1, .value = 5, .exponent = 7});
  const auto sent = sink_.take();
  ASSERT_EQ(1U, sent.size());
  EXPECT_EQ(host(1), sent[0].to);
  wire::chip::Packet packet;
  ASSERT_EQ(wire::ParseError::none, wire::chip::parse(sent[0].bytes, packet));
  EXPECT_EQ(99U, load_be<std::uint32_t>(packet.payload.data()));
  EXPECT_EQ(70, packet.header.exponents[0]);
}

TEST_F(ChipInATree, TakesResultsOfTheOpenRoundFromItsParentAlone) {
  gather(0);
  take_sums();
  receive(result_of(0, 1, 1), host(0));
  receive(result_of(0, 1, 1), host(2));
  EXPECT_EQ(2U, counters().dropped_source);
  receive(result_of(2, 1, 1), parent);
  EXPECT_EQ(1U, counters().dropped_stale);
  auto other = result_of(0, 1, 1);
  other.resize(wire::chip::packet_bytes(256));
  receive(other, parent);
  EXPECT_EQ(1U, counters().dropped_shape);
  EXPECT_TRUE(sink_.take().empty());
  receive(result_of(0, 99, 70), parent);
  EXPECT_EQ(ranks, sink_.take().size());
  receive(result_of(0, 98, 70), parent);
  EXPECT_EQ(2U, counters().dropped_stale) << "a late copy";
  receive(packet_of(header_of({.rank = 1}), 5), parent);
  EXPECT_EQ(3U, counters().dropped_source) << "a parent contributes nothing";
  EXPECT_TRUE(sink_.take().empty());
  EXPECT_EQ(counters().packets, outcomes(counters()));
}

// The sum is lent to the sink until its flush().
TEST_F(ChipInATree, ASumLeavesBeforeItsResultTakesItsPlace) {
  receive({.rank = 0, .value = 5});
  receive({.rank = 1, .value = 5});
  const auto last = packet_of(header_of({.rank = 2}), 5), result = result_of(0, 99, 70);
  const RxView batch[] = {{last, host(2)}, {result, parent}};
  switch_.on_packets(batch, Time{}, sink_);
  const auto sent = sink_.take();
  ASSERT_EQ(1 + ranks, sent.size());
  wire::chip::Packet sum;
  ASSERT_EQ(wire::ParseError::none, wire::chip::parse(sent[0].bytes, sum));
  EXPECT_EQ(15U, load_be<std::uint32_t>(sum.payload.data()));
}

TEST_F(ChipInATree, NamesTheRanksBelowAMemberThatIsMissing) {
  receive({.rank = 1, .value = 5});
  const auto stalled = switch_.stalled(epoch, 8);
  ASSERT_EQ(1U, stalled.size());
  wire::switchml::Ranks missing;
  for (const std::uint32_t rank : {6U, 8U, 9U}) missing.insert(rank);
  EXPECT_EQ(missing, stalled[0].missing);
}

TEST_F(ChipSwitchTest, ACopyHasItsOwnSums) {
  receive({.rank = 0, .value = 5});
  switchml::ChipSwitch copy(switch_);
  std::vector<Line> memory(memory_.size());
  copy.move_memory(epoch, std::as_writable_bytes(std::span(memory)));
  const auto state_of = [](const switchml::ChipSwitch& of) {
    std::vector<std::byte> state;
    of.append_state(state);
    return state;
  };
  EXPECT_EQ(state_of(switch_), state_of(copy));
  receive({.rank = 1, .value = 5});
  EXPECT_NE(state_of(switch_), state_of(copy));
  std::swap(switch_, copy);
  receive({.rank = 1, .value = 6});
  receive({.rank = 2, .value = 6});
  EXPECT_EQ(17, take_results().at(0).sum);
}

}  // namespace
}  // namespace netsum::testing
