// The parameter server with hand-made packets: what it adds, whom it answers and what it asks for.
#include "protocol/atp/server.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <climits>
#include <cmath>
#include <memory>

#include "support/atp_packets.h"

namespace netsum::atp {
namespace {

using namespace std::chrono_literals;
using netsum::testing::AnyPacket;
using netsum::testing::Bytes;
using netsum::testing::CacheLine;
using netsum::testing::gradient_bytes_of;
using netsum::testing::parameter_bytes_of;
using netsum::testing::port;
using netsum::testing::ranks_of;
using netsum::testing::RecordingSink;
using netsum::testing::take_packets;
using wire::atp::Common;
using wire::atp::Directions;
using wire::atp::Type;

using Values = std::vector<std::int32_t>;

constexpr std::uint64_t epoch = 77;
constexpr std::uint32_t folded = 0xabcd, signature = 5;
constexpr std::uint32_t window = 4, longest = 8;
constexpr std::uint64_t ring = 2 * window;
const Endpoint rack = port(90);  // the switch that all ranks are at

Endpoint host(std::uint32_t rank) {
  return port(static_cast<std::uint16_t>(10 + rank));
}

ServerJobConfig job(const TopologyConfig& topology = {{at_server}, {0, 0, 0}}) {
  ServerJobConfig c;
  c.epoch = epoch;
  c.folded_epochs = folded;
  c.packet_elements = longest;
  c.window = window;
  c.switch_slots = 1000;
  c.topology = Topology(topology);
  for (std::uint32_t rank = 0; rank < c.topology.world_size(); ++rank) c.members.push_back({100 + rank, host(rank)});
  for (const auto& child : c.topology.server_children()) {
    c.roots.push_back(child.is_switch ? port(static_cast<std::uint16_t>(90 + child.index)) : host(child.index));
  }
  return c;
}

Values bits(const std::vector<float>& values) {
  Values list;
  for (const float value : values) list.push_back(std::bit_cast<std::int32_t>(value));
  return list;
}

using Change = void (*)(Common&);
void nothing(Common&) {}

class AtpServerTest : public ::testing::Test {
 protected:
  void SetUp() override { start(job()); }

  std::vector<CacheLine>& memory_for(const ServerJobConfig& c) {
    return *memories_.emplace_back(std::make_unique<std::vector<CacheLine>>(
        Server::memory_bytes(c.packet_elements, c.window, c.topology.world_size()) / sizeof(CacheLine)));
  }
  void start(const ServerJobConfig& c) {
    server_.remove_job(c.epoch);
    ASSERT_TRUE(server_.add_job(c, std::as_writable_bytes(std::span(memory_for(c)))));
    topology_ = c.topology;
  }

  [[nodiscard]] static Common of(std::uint32_t rank_epoch, std::uint64_t sequence) {
    Common c;
    c.type = Type::gradient;
    c.job_epoch = epoch;
    c.sequence = sequence;
    c.rank_epoch = rank_epoch;
    c.signature = signature;
    c.index = static_cast<std::uint32_t>(40 + sequence);
    return c;
  }
  // One rank's values, by itself or through its switch.
  [[nodiscard]] Bytes single_packet(std::uint32_t rank, std::uint64_t sequence, const Values& values,
                                    Change change = nothing) const {
    Common c = of(100 + rank, sequence);
    change(c);
    return gradient_bytes_of(c, topology_.path(rank), values);
  }
  // A sum of ranks below the rack's switch.
  [[nodiscard]] static Bytes sum_packet(std::uint32_t bitmap, std::uint64_t sequence, const Values& values,
                                        Change change = nothing, const std::vector<std::int16_t>& high = {}) {
    Common c = of(folded, sequence);
    change(c);
    return gradient_bytes_of(c, {1, {3, 1, 0, 0}, {bitmap, 1, 0, 0}}, values, high);
  }

  void receive(const Bytes& packet, const Endpoint& source, bool congested_queue = false, bool congested_packet = false) {
    const RxView view{packet, source, congested_packet};
    server_.on_packets({&view, 1}, congested_queue, now_, sink_);
    sink_.flush();  // as the event loop does after each batch
  }
  void direct(std::uint32_t rank, std::uint64_t sequence, const Values& values, Change change = nothing) {
    receive(single_packet(rank, sequence, values, change), host(rank));
  }
  void single(std::uint32_t rank, std::uint64_t sequence, const Values& values, Change change = nothing) {
    receive(single_packet(rank, sequence, values, change), rack);
  }
  void sum(std::uint32_t bitmap, std::uint64_t sequence, const Values& values, Change change = nothing,
           const std::vector<std::int16_t>& high = {}) {
    receive(sum_packet(bitmap, sequence, values, change, high), rack);
  }
  void floats(std::uint32_t rank, std::uint64_t sequence, const std::vector<float>& values, Change change = nothing) {
    Common c = of(100 + rank, sequence);
    c.floats = c.direct = true;
    change(c);
    receive(gradient_bytes_of(c, topology_.path(rank), bits(values)), rack);
  }
  // All ranks' values overflow: the floats are asked for, unless other chunks' are waited for already.
  void overflow(std::uint64_t sequence, std::size_t elements = 1) {
    sum(7, sequence, Values(elements), [](Common& c) { c.overflow = true; });
  }

  AnyPacket one() {
    const auto packets = take_packets(sink_);
    EXPECT_EQ(1U, packets.size());
    return packets.empty() ? AnyPacket{} : packets.front();
  }
  bool silent() { return take_packets(sink_).empty(); }
  const ServerJobCounters& counters() { return *server_.job_counters(epoch); }

  Server server_;
  std::vector<std::unique_ptr<std::vector<CacheLine>>> memories_;
  Topology topology_;
  RecordingSink sink_;
  Time now_{10s};
};

// ---- sums

TEST_F(AtpServerTest, ACompleteSumIsTheResult) {
  sum(7, 0, {1, -2});
  const AnyPacket result = one();
  EXPECT_EQ(rack, result.to);
  EXPECT_EQ(Type::parameter, result.common.type);
  EXPECT_EQ((Values{1, -2}), result.values);
  EXPECT_EQ(folded, result.common.rank_epoch);
  EXPECT_EQ(signature, result.common.signature);
  EXPECT_EQ(40U, result.common.index);
  EXPECT_EQ(40U, result.next_index);
  EXPECT_FALSE(result.common.ecn || result.common.floats);
  EXPECT_EQ(1U, counters().added_complete);
  EXPECT_EQ(1U, counters().chunks);
  EXPECT_EQ(0U, server_.incomplete(epoch));
}

TEST_F(AtpServerTest, AResultHasNoChecksumIfNoneOfItsPacketsHas) {
  const auto unchecked = [](Common& c) { c.unchecked = true; };
  sum(7, 0, {1}, unchecked);
  EXPECT_TRUE(one().common.unchecked);
  single(1, 1, {1});
  sum(5, 1, {1}, unchecked);
  EXPECT_FALSE(one().common.unchecked);
  sum(7, 2, {0}, [](Common& c) { c.unchecked = c.overflow = true; });
  EXPECT_FALSE(one().common.unchecked) << "questions have one";
  floats(0, 2, {1}, unchecked);
  floats(1, 2, {1}, unchecked);
  floats(2, 2, {1});
  EXPECT_FALSE(one().common.unchecked);
}

TEST_F(AtpServerTest, SumsAndSingleRanksAreAddedUpByTheirBitmaps) {
  single(1, 0, {10});
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, server_.incomplete(epoch));
  sum(5, 0, {200});  // ranks 0 and 2
  EXPECT_EQ((Values{210}), one().values);
  EXPECT_EQ(1U, counters().added_single);
  EXPECT_EQ(1U, counters().added_partial);
  EXPECT_EQ(0U, counters().added_complete);
}

TEST_F(AtpServerTest, NothingIsAddedTwice) {
  single(0, 0, {1});
  single(0, 0, {1});
  direct(0, 0, {1});
  sum(6, 0, {20});
  sum(6, 0, {20});
  bool found = false;
  for (const AnyPacket& packet : take_packets(sink_)) {
    if (packet.common.type != Type::parameter) continue;
    EXPECT_EQ((Values{21}), packet.values);
    found = true;
  }
  EXPECT_TRUE(found);
}

TEST_F(AtpServerTest, ASumThatOverlapsIsOfNoUseAndItsOtherRanksAreAsked) {
  single(0, 0, {1});
  sum(3, 0, {11});  // rank 0 again, and rank 1
  const AnyPacket asked = one();
  EXPECT_EQ(Type::ask, asked.common.type);
  EXPECT_EQ(host(1), asked.to);
  EXPECT_FALSE(asked.common.floats);
  EXPECT_EQ(folded, asked.common.rank_epoch);
  EXPECT_EQ(1U, counters().overlaps);
  EXPECT_EQ(1U, counters().asks);
  sum(3, 0, {11});  // it has just been asked
  EXPECT_TRUE(silent());
  now_ += 1ms;
  sum(7, 0, {111});
  const auto again = take_packets(sink_);
  ASSERT_EQ(2U, again.size());
  EXPECT_EQ(host(1), again[0].to);
  EXPECT_EQ(host(2), again[1].to);
  single(1, 0, {10});
  single(2, 0, {100});
  EXPECT_EQ((Values{111}), one().values);
}

TEST_F(AtpServerTest, ByThePapersRulesNobodyIsAskedForAPart) {
  ServerJobConfig c = job();
  c.rules = Rules::paper;
  start(c);
  single(0, 0, {1});
  sum(3, 0, {11});
  now_ += 1ms;
  single(0, 0, {1});
  EXPECT_TRUE(silent());
  single(1, 0, {10});
  single(2, 0, {100});
  EXPECT_EQ((Values{111}), one().values);
}

TEST_F(AtpServerTest, EmptyContributionsCountWithoutValues) {
  sum(3, 0, {});
  single(2, 0, {4, 5});
  EXPECT_EQ((Values{4, 5}), one().values);
  sum(7, 1, {});
  EXPECT_EQ(Values{}, one().values);
}

TEST_F(AtpServerTest, ValuesOfAnotherLengthAreNotAdded) {
  single(0, 0, {1, 2});
  sum(6, 0, {1});
  EXPECT_EQ(1U, counters().dropped_shape);
  sum(6, 0, {10, 20});
  EXPECT_EQ((Values{11, 22}), one().values);
}

TEST_F(AtpServerTest, ASumThatComesBackIntoInt32IsExact) {
  sum(3, 0, {INT32_MIN, 5}, nothing, {1, 0});  // 2^31
  single(2, 0, {-1, 1});
  const AnyPacket result = one();
  EXPECT_EQ(Type::parameter, result.common.type);
  EXPECT_EQ((Values{INT32_MAX, 6}), result.values);
}

TEST_F(AtpServerTest, IntegersWrap) {
  const Change integers = [](Common& c) { c.integers = true; };
  single(0, 0, {INT32_MAX}, integers);
  sum(6, 0, {1}, integers);
  EXPECT_EQ((Values{INT32_MIN}), one().values);
}

// §B.3: the scale of the chunk one window later.
TEST_F(AtpServerTest, TheLargestExponentIsInTheResultAndInItsRepeats) {
  const Change small = [](Common&c) { c.exponent = 120; }, large = [](Common&c) { c.exponent = 150; };
  single(0, 0, {1}, small);
  direct(1, 0, {1}, large);
  static_cast<void>(take_packets(sink_));
  sum(5, 0, {1}, [](Common& c) { c.exponent = 200; });  // overlaps: nothing of it is taken
  static_cast<void>(take_packets(sink_));
  single(2, 0, {1}, small);
  for (const AnyPacket& result : take_packets(sink_)) EXPECT_EQ(150, result.common.exponent);
  single(1, 0, {1}, [](Common& c) { c.exponent = 250; });  // a result stays as it is
  EXPECT_EQ(150, one().common.exponent);
  sum(3, 1, {1}, large);
  single(2, 1, {1}, small);
  EXPECT_EQ(150, take_packets(sink_).at(0).common.exponent);
  sum(7, ring, {1});  // and is of its chunk alone
  EXPECT_EQ(0, take_packets(sink_).at(0).common.exponent);
}

TEST_F(AtpServerTest, ASumOfFloatsSaysTheExponentOfItsIntegers) {
  sum(7, 0, {0}, [](Common& c) {
    c.overflow = true;
    c.exponent = 140;
  });
  EXPECT_EQ(0, one().common.exponent);  // the question
  floats(0, 0, {1});
  floats(1, 0, {2}, [](Common& c) { c.exponent = 140; });
  floats(2, 0, {3}, [](Common& c) { c.exponent = 254; });
  const AnyPacket result = one();
  EXPECT_TRUE(result.common.floats);
  EXPECT_EQ(140, result.common.exponent);
}

TEST_F(AtpServerTest, MarksOfAllPacketsAreInTheResult) {
  const auto marked = [&](std::uint64_t sequence, Change change, bool queue, bool packet) {
    receive(single_packet(0, sequence, {1}, change), rack, queue, packet);
    sum(6, sequence, {2});
    return one().common.ecn;
  };
  EXPECT_FALSE(marked(0, nothing, false, false));
  EXPECT_TRUE(marked(
      1, [](Common& c) { c.ecn = true; }, false, false));
  EXPECT_TRUE(marked(2, nothing, true, false));
  EXPECT_TRUE(marked(3, nothing, false, true));
  sum(7, 4, {1});
  static_cast<void>(take_packets(sink_));
  direct(0, 4, {1}, [](Common& c) { c.ecn = true; });
  EXPECT_FALSE(one().common.ecn);  // a result stays as it is
}

// ---- indices

TEST_F(AtpServerTest, ACollisionRemapsItsIndex) {
  single(0, 0, {1}, [](Common& c) { c.resend = c.collision = true; });
  sum(6, 0, {2});
  EXPECT_EQ(rehashed(epoch, 0, 40, 1000), one().next_index);
  EXPECT_EQ(1U, counters().collisions);
  EXPECT_EQ(1U, counters().remapped);
  sum(7, 1, {2});
  EXPECT_EQ(41U, one().next_index);
  single(0, window + 1, {1}, [](Common& c) { c.resend = c.collision = true; });
  sum(6, window + 1, {2});
  EXPECT_EQ(rehashed(epoch, 1, 40 + window + 1, 1000), one().next_index);  // by its position in the window
  // It is of its chunk alone: the next in the same place has none.
  sum(7, ring, {3});
  EXPECT_EQ(40U + ring, one().next_index);
}

TEST_F(AtpServerTest, OnlyRehashingRemaps) {
  ServerJobConfig c = job();
  c.indexing = Indexing::hash;
  start(c);
  single(0, 0, {1}, [](Common& common) { common.resend = common.collision = true; });
  sum(6, 0, {2});
  EXPECT_EQ(40U, one().next_index);
  EXPECT_EQ(0U, counters().remapped);
}

// ---- repeats

TEST_F(AtpServerTest, ARankThatRepeatsItselfLearnsWhomItWaitsForAndTheyAreAsked) {
  single(0, 0, {1});
  single(0, 0, {1});
  const auto sent = take_packets(sink_);
  ASSERT_EQ(3U, sent.size());
  EXPECT_EQ(Type::waiting, sent[0].common.type);
  EXPECT_EQ(host(0), sent[0].to);
  EXPECT_EQ(ranks_of({1, 2}), sent[0].missing);
  EXPECT_EQ(Type::ask, sent[1].common.type);
  EXPECT_EQ(host(1), sent[1].to);
  EXPECT_EQ(host(2), sent[2].to);
  single(0, 0, {1});
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, counters().repeats_waiting);
  EXPECT_EQ(1U, counters().repeats_silent);
  now_ += 1ms;
  single(0, 0, {1});
  EXPECT_EQ(3U, take_packets(sink_).size());
}

TEST_F(AtpServerTest, ASumThatRepeatsItselfTellsItsFirstRank) {
  sum(6, 0, {1});
  sum(6, 0, {1});
  const auto sent = take_packets(sink_);
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(host(1), sent[0].to);
  EXPECT_EQ(ranks_of({0}), sent[0].missing);
  EXPECT_EQ(host(0), sent[1].to);
}

TEST_F(AtpServerTest, ARepeatOfACompleteChunkIsAnsweredToItsSenderAlone) {
  sum(7, 0, {9});
  static_cast<void>(take_packets(sink_));
  single(1, 0, {3});
  const AnyPacket result = one();
  EXPECT_EQ(host(1), result.to);
  EXPECT_EQ(Type::parameter, result.common.type);
  EXPECT_EQ((Values{9}), result.values);
  single(1, 0, {3});  // that answer was lost, as others have shown it
  EXPECT_EQ(host(1), one().to);
  single(2, 0, {3});
  EXPECT_EQ(host(2), one().to);
  EXPECT_EQ(3U, counters().repeats_answered);
  for (int i = 0; i < 100; ++i) single(0, 0, {});  // short, and results are not
  EXPECT_EQ(host(0), one().to);
  now_ += 1ms;
  single(0, 0, {});
  EXPECT_EQ(host(0), one().to);
}

// As often as probes come, and from then on once a millisecond.
TEST_F(AtpServerTest, ARepeatedSumIsAnsweredToItsSwitchOncePerInterval) {
  sum(7, 0, {9});
  static_cast<void>(take_packets(sink_));
  for (const Duration interval : {300us, 300us, 600us, 1000us, 1000us}) {
    now_ += interval - 1ns;
    if (counters().repeats_answered != 0) {
      sum(3, 0, {4});
      EXPECT_TRUE(silent());
    }
    now_ += 1ns;
    sum(3, 0, {4});
    const AnyPacket again = one();
    EXPECT_EQ(rack, again.to);
    EXPECT_EQ((Values{9}), again.values);
  }
  EXPECT_EQ(5U, counters().repeats_answered);
  EXPECT_EQ(4U, counters().repeats_silent);
}

TEST_F(AtpServerTest, ResultsStayForTwoWindowsThenTheirPlaceIsTaken) {
  sum(7, 0, {9});
  sum(7, ring, {90});
  static_cast<void>(take_packets(sink_));
  single(0, ring, {1});
  EXPECT_EQ((Values{90}), one().values);
}

TEST_F(AtpServerTest, WhatEverybodyHasLongHadIsDoneAndFreesSlots) {
  sum(7, 0, {9});
  sum(7, ring, {9});
  static_cast<void>(take_packets(sink_));
  single(1, 0, {3});
  const AnyPacket done = one();
  EXPECT_EQ(rack, done.to);
  EXPECT_EQ(Type::done, done.common.type);
  EXPECT_EQ(0U, done.common.sequence);
  EXPECT_EQ(40U, done.common.index);
  EXPECT_EQ(folded, done.common.rank_epoch);
  EXPECT_EQ(signature, done.common.signature);
  direct(1, 0, {3});  // past all slots
  EXPECT_TRUE(silent());
  EXPECT_EQ(2U, counters().old);
}

TEST_F(AtpServerTest, WhatNoRankCanSendYetIsRefused) {
  sum(7, ring, {1});  // nobody has the result of ring - window
  EXPECT_EQ(1U, counters().dropped_early);
  single(0, 0, {1});
  sum(7, ring, {1});  // sequence number 0 is not complete
  EXPECT_EQ(2U, counters().dropped_early);
  sum(6, 0, {1});
  static_cast<void>(take_packets(sink_));
  sum(7, 2 * ring, {1});  // and there is no way to here but over `ring`
  EXPECT_EQ(3U, counters().dropped_early);
  EXPECT_TRUE(silent());
  sum(7, ring, {1});
  EXPECT_EQ(ring, one().common.sequence);
  EXPECT_EQ(3U, counters().dropped_early);
}

// ---- ranks whose packets come without a switch on the way

TEST_F(AtpServerTest, RanksThatComeByThemselvesAreAnsweredByThemselvesToo) {
  direct(1, 0, {1});
  sum(5, 0, {2});
  auto sent = take_packets(sink_);
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(rack, sent[0].to);
  EXPECT_EQ(host(1), sent[1].to);
  EXPECT_EQ((Values{3}), sent[1].values);
  single(1, 1, {1});  // through the switch again
  sum(5, 1, {2});
  EXPECT_EQ(rack, one().to);
  direct(1, 2, {1});
  direct(2, 2, {1});
  single(0, 2, {1});
  sent = take_packets(sink_);
  ASSERT_EQ(3U, sent.size());
  sum(7, 3, {1});  // their switch has them all again
  EXPECT_EQ(rack, one().to);
}

// What a sink was told to send to them is sent to them, whoever they are by the time that it leaves.
TEST_F(AtpServerTest, ResultsLeaveBeforeTheirReceiversChange) {
  const Bytes first = single_packet(1, 0, {1}), second = single_packet(2, 0, {1}), third = single_packet(0, 0, {1}),
              fourth = single_packet(1, 1, {1});
  const RxView views[] = {{first, host(1)}, {second, host(2)}, {third, rack}, {fourth, rack}};
  server_.on_packets(views, false, now_, sink_);
  const auto sent = take_packets(sink_);
  ASSERT_EQ(3U, sent.size());
  EXPECT_EQ(rack, sent[0].to);
  EXPECT_EQ(host(1), sent[1].to);
  EXPECT_EQ(host(2), sent[2].to);
}

TEST_F(AtpServerTest, ASwitchIsBelievedFromWhereItIsKnownToBe) {
  ServerJobConfig config = job();
  config.roots = {Endpoint{}};  // nothing is known of it yet
  start(config);
  sum(7, 0, {6});
  EXPECT_EQ(1U, counters().dropped_source);
  for (const std::uint32_t rank : {0U, 1U, 2U}) direct(rank, 0, {2});
  EXPECT_EQ(3U, take_packets(sink_).size()) << "to the ranks alone";
  server_.move_roots(epoch, {rack});
  sum(7, 1, {6});
  EXPECT_EQ(1U, counters().added_complete);
  EXPECT_EQ(rack, take_packets(sink_).front().to);
  server_.move_roots(epoch, {port(91)});
  sum(7, 2, {6});
  EXPECT_EQ(2U, counters().dropped_source);
  server_.move_roots(epoch, {rack, port(91)});  // not of this job
  server_.move_roots(epoch + 1, {rack});
  sum(7, 2, {6});
  EXPECT_EQ(3U, counters().dropped_source);
}

TEST_F(AtpServerTest, WithoutSwitchesRanksAreTheRoots) {
  start(job({{}, {at_server, at_server}}));
  direct(0, 0, {1});
  direct(1, 0, {2});
  const auto sent = take_packets(sink_);
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(host(0), sent[0].to);
  EXPECT_EQ(host(1), sent[1].to);
  EXPECT_EQ((Values{3}), sent[1].values);
}

TEST_F(AtpServerTest, ARankAloneIsItsOwnSum) {
  start(job({{}, {at_server}}));
  direct(0, 0, {7});
  EXPECT_EQ((Values{7}), one().values);
  EXPECT_EQ(1U, counters().added_single);
}

TEST_F(AtpServerTest, TwoLevelsAreReadFromTheirBitmaps) {
  start(job({{2, 2, at_server}, {0, 0, 1, 1, 2, 2}}));
  const auto arrive = [&](std::array<std::uint32_t, 4> bitmap, std::int32_t value) {
    receive(gradient_bytes_of(of(folded, 0), {2, {2, 4, 1, 0}, bitmap}, {value}), port(92));
  };
  arrive({3, 1, 1, 0}, 11);    // one rack
  arrive({1, 6, 1, 0}, 1100);  // the other, and rank 4
  EXPECT_TRUE(silent());
  EXPECT_EQ(ranks_of({5}), server_.stalled(epoch, 9).at(0).missing);
  arrive({0, 8, 1, 0}, 20000);
  EXPECT_EQ((Values{21111}), one().values);
}

// 256 ranks below a switch: their sum lacks two, and comes twice. Rank 200's own packet comes twice.
TEST_F(AtpServerTest, ABroadSumLacksWhomItsBitmapLacks) {
  start(job({{at_server}, std::vector<std::uint32_t>(256, 0)}));
  Directions part(1, {256, 1, 0, 0}, {0, 1, 0, 0});
  for (std::uint32_t rank = 0; rank < 256; ++rank) {
    if (rank != 33 && rank != 200) part.insert(0, rank);
  }
  const Bytes sum = gradient_bytes_of(of(folded, 0), part, {1000});
  receive(sum, rack);
  EXPECT_TRUE(silent());
  EXPECT_EQ(ranks_of({33, 200}), server_.stalled(epoch, 9).at(0).missing);
  single(200, 0, {200});
  single(200, 0, {200});
  receive(sum, rack);
  EXPECT_EQ(ranks_of({33}), server_.stalled(epoch, 9).at(0).missing);
  static_cast<void>(take_packets(sink_));
  single(33, 0, {33});
  EXPECT_EQ((Values{1233}), one().values);
  EXPECT_EQ(1U, counters().added_partial);
  EXPECT_EQ(2U, counters().added_single);
}

TEST_F(AtpServerTest, WithoutSwitchesItHasAsManyChildrenAsASwitch) {
  start(job({{}, std::vector<std::uint32_t>(256, at_server)}));
  for (std::uint32_t rank = 0; rank < 255; ++rank) direct(rank, 0, {1});
  direct(200, 0, {1});
  for (const AnyPacket& packet : take_packets(sink_)) {
    EXPECT_NE(Type::parameter, packet.common.type);
    EXPECT_EQ(host(packet.common.type == Type::ask ? 255 : 200), packet.to);
  }
  direct(255, 0, {1});
  const auto results = take_packets(sink_);
  ASSERT_EQ(256U, results.size());
  EXPECT_EQ((Values{256}), results.back().values);
}

// ---- §3.8: overflow

TEST_F(AtpServerTest, AnOverflowedSumIsMadeAgainFromFloats) {
  overflow(0, 2);
  const AnyPacket asked = one();
  EXPECT_EQ(rack, asked.to);
  EXPECT_EQ(Type::ask, asked.common.type);
  EXPECT_TRUE(asked.common.floats);
  EXPECT_EQ(1U, server_.incomplete(epoch));
  floats(2, 0, {1e9F, 1});
  floats(0, 0, {2e9F, 2});
  EXPECT_TRUE(silent());
  floats(1, 0, {3e9F, 3});
  const AnyPacket result = one();
  EXPECT_EQ(Type::parameter, result.common.type);
  EXPECT_TRUE(result.common.floats);
  EXPECT_EQ(bits({6e9F, 6}), result.values);
  EXPECT_EQ(3U, counters().floats);
  EXPECT_EQ(1U, counters().fallbacks);
  direct(0, 0, {1, 2});  // a repeat is answered as it was
  EXPECT_EQ(bits({6e9F, 6}), one().values);
  floats(1, 0, {3e9F, 3});
  EXPECT_TRUE(one().common.floats);
}

// As in a packet in which all of them fit: 4e-9 is rounded to 0, and integers have no -0.
TEST_F(AtpServerTest, ElementsThatFitAreWhatTheyAreBesideOthers) {
  overflow(0, 4);
  static_cast<void>(one());
  for (const std::uint32_t rank : {0U, 1U, 2U}) floats(rank, 0, {1e9F, -0.0F, 4e-9F, 0.1F});
  EXPECT_EQ(bits({3e9F, 0, 0, 0.3F}), one().values);
}

// Of all ranks, whatever they say it is.
TEST_F(AtpServerTest, TheLargestExponentDecidesHowElementsAreRounded) {
  overflow(0, 2);
  static_cast<void>(one());
  const std::vector<float> values{INFINITY, 0x1p-19F + 0x1p-21F};
  floats(0, 0, values);
  floats(1, 0, values, [](Common& c) { c.exponent = 136; });  // up to 2^10: three of them fit times 2^19
  floats(2, 0, values, [](Common& c) { c.exponent = 120; });
  EXPECT_EQ(bits({INFINITY, 3 * 0x1p-19F}), one().values);
}

TEST_F(AtpServerTest, AWideSumThatStaysWideIsMadeAgainFromFloats) {
  sum(3, 0, {0}, nothing, {1});
  single(2, 0, {0});
  EXPECT_TRUE(one().common.floats);
  floats(0, 0, {1});
  floats(1, 0, {1});
  floats(2, 0, {1});
  EXPECT_EQ(bits({3}), one().values);
}

TEST_F(AtpServerTest, FloatsAreAddedInRankOrderWhateverOrderTheyComeIn) {
  for (const auto& order : {std::array{0U, 2U, 1U}, std::array{2U, 1U, 0U}, std::array{1U, 2U, 0U}}) {
    start(job());
    overflow(0);
    static_cast<void>(take_packets(sink_));
    const float values[] = {1e30F, 1, -1e30F};
    for (const std::uint32_t rank : order) floats(rank, 0, {values[rank]});
    EXPECT_EQ(bits({0}), one().values);  // (1e30 + 1) - 1e30
  }
}

TEST_F(AtpServerTest, AnAverageIsDividedBeforeItIsRounded) {
  const Change average = [](Common& c) { c.average = true; };
  overflow(0);
  static_cast<void>(take_packets(sink_));
  for (std::uint32_t rank = 0; rank < 3; ++rank) floats(rank, 0, {FLT_MAX}, average);
  EXPECT_EQ(bits({FLT_MAX}), one().values);
  overflow(1);
  static_cast<void>(take_packets(sink_));
  for (std::uint32_t rank = 0; rank < 3; ++rank) floats(rank, 1, {FLT_MAX});
  EXPECT_EQ(bits({INFINITY}), one().values);
}

TEST_F(AtpServerTest, MoreOverflowedChunksThanBuffersWaitForTheirTurn) {
  constexpr std::uint64_t buffers = 8, chunks = 11;
  ServerJobConfig c = job();
  c.window = 16;
  start(c);
  for (std::uint64_t sequence = 0; sequence < chunks; ++sequence) overflow(sequence);
  EXPECT_EQ(buffers, take_packets(sink_).size());
  EXPECT_EQ(chunks, server_.incomplete(epoch));
  floats(0, buffers, {1});  // nobody asked for them
  EXPECT_EQ(1U, counters().dropped_early);
  single(0, buffers, {0});  // whoever repeats itself meanwhile waits for nobody
  const AnyPacket waiting = one();
  EXPECT_EQ(Type::waiting, waiting.common.type);
  EXPECT_TRUE(waiting.missing.empty());
  for (std::uint64_t sequence = 0; sequence < chunks; ++sequence) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) floats(rank, sequence, {static_cast<float>(sequence)});
    const auto sent = take_packets(sink_);
    ASSERT_EQ(sequence + buffers < chunks ? 2U : 1U, sent.size());
    EXPECT_EQ(sequence, sent[0].common.sequence);
    EXPECT_EQ(bits({3 * static_cast<float>(sequence)}), sent[0].values);
    if (sent.size() == 1) continue;
    EXPECT_EQ(Type::ask, sent[1].common.type);  // the next in line
    EXPECT_EQ(sequence + buffers, sent[1].common.sequence);
  }
  EXPECT_EQ(chunks, counters().fallbacks);
  EXPECT_EQ(0U, server_.incomplete(epoch));
}

TEST_F(AtpServerTest, FloatsThatNobodyAskedForAreRefused) {
  floats(0, 0, {1});
  EXPECT_EQ(1U, counters().dropped_early);
  single(0, 0, {1});
  floats(0, 0, {1});
  EXPECT_EQ(2U, counters().dropped_early);
  overflow(1, 2);
  floats(0, 1, {1});  // of another length
  EXPECT_EQ(1U, counters().dropped_shape);
}

TEST_F(AtpServerTest, WhoDoesNotKnowThatFloatsAreWantedIsAskedAgain) {
  overflow(0);
  static_cast<void>(take_packets(sink_));
  single(1, 0, {0});  // the question was lost
  AnyPacket asked = one();
  EXPECT_EQ(host(1), asked.to);
  EXPECT_EQ(Type::ask, asked.common.type);
  EXPECT_TRUE(asked.common.floats);
  floats(1, 0, {1});
  floats(1, 0, {1});
  EXPECT_TRUE(silent());  // it has just been told something
  now_ += 1ms;
  floats(1, 0, {1});
  const auto sent = take_packets(sink_);
  ASSERT_EQ(3U, sent.size());
  EXPECT_EQ(Type::waiting, sent[0].common.type);
  EXPECT_EQ(ranks_of({0, 2}), sent[0].missing);
  EXPECT_EQ(host(0), sent[1].to);
  EXPECT_TRUE(sent[1].common.floats);
  EXPECT_EQ(host(2), sent[2].to);
  EXPECT_EQ(ranks_of({0, 2}), server_.stalled(epoch, 9).at(0).missing);
}

// ---- §5.3: calls that differ

TEST_F(AtpServerTest, AMismatchNamesBothRanksToEverybody) {
  single(2, 0, {1});
  single(1, 0, {1}, [](Common& c) { c.signature = 6; });
  const auto sent = take_packets(sink_);
  ASSERT_EQ(3U, sent.size());
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(host(rank), sent[rank].to);
    EXPECT_EQ(Type::mismatch, sent[rank].common.type);
    EXPECT_EQ(2, sent[rank].mismatch.first_rank);
    EXPECT_EQ(1, sent[rank].mismatch.second_rank);
    EXPECT_EQ(5U, sent[rank].mismatch.first_signature);
    EXPECT_EQ(6U, sent[rank].mismatch.second_signature);
    EXPECT_EQ(folded, sent[rank].common.rank_epoch);
  }
  EXPECT_EQ(1U, counters().dropped_mismatch);
}

TEST_F(AtpServerTest, AMismatchIsToldAgainToWhoeverGoesOnAndNotWithoutLimit) {
  const Change other = [](Common& c) { c.signature = 6; };
  single(2, 0, {1});
  single(1, 0, {1}, other);
  static_cast<void>(take_packets(sink_));
  for (int i = 0; i < 100; ++i) single(0, 0, {1}, [](Common& c) { c.signature = 7; });
  const auto sent = one();
  EXPECT_EQ(host(0), sent.to);
  EXPECT_EQ(6U, sent.mismatch.second_signature);  // still the first two
  now_ += 1ms;
  single(2, 0, {1});  // who issued the first call
  EXPECT_EQ(host(2), one().to);
  sum(7, 0, {1});  // and nothing is added any more
  EXPECT_EQ(Type::mismatch, one().common.type);
  EXPECT_EQ(0U, counters().chunks);
  EXPECT_EQ(1U, server_.incomplete(epoch));
}

TEST_F(AtpServerTest, AnotherCallAfterAResultIsNotBelieved) {
  sum(7, 0, {1});
  static_cast<void>(take_packets(sink_));
  single(1, 0, {1}, [](Common& c) { c.signature = 6; });
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, counters().dropped_mismatch);
  direct(1, 0, {1});
  EXPECT_EQ((Values{1}), one().values);
}

// ---- who is believed

TEST_F(AtpServerTest, ForeignAndForgedPacketsAreCountedAndDropped) {
  receive(single_packet(0, 0, {1}), host(1));
  receive(single_packet(0, 0, {1}), port(50));
  receive(sum_packet(7, 0, {1}), host(0));  // a rank is not a switch
  EXPECT_EQ(3U, counters().dropped_source);
  std::map<std::string, Endpoint> sources;
  server_.drop_sources(epoch)->add_to(sources);
  EXPECT_EQ((std::map<std::string, Endpoint>{{"dropped_source", host(0)}}), sources) << "the newest";
  direct(0, 0, {1}, [](Common& c) { c.rank_epoch = 101; });
  direct(0, 0, {1}, [](Common& c) { c.rank_epoch = folded; });
  single(0, 0, {1}, [](Common& c) { c.rank_epoch = 101; });
  sum(3, 0, {1}, [](Common& c) { c.rank_epoch = 100; });
  EXPECT_EQ(4U, counters().dropped_rank_epoch);
  receive(gradient_bytes_of(of(100, 0), {1, {4, 1, 0, 0}, {1, 1, 0, 0}}, {1}), rack);  // another topology's
  receive(gradient_bytes_of(of(100, 0), topology_.path(0), Values(longest + 1)), rack);
  single(0, 0, {1}, [](Common& c) { c.floats = true; });  // malformed
  EXPECT_EQ(3U, counters().dropped_shape);
  Bytes damaged = single_packet(0, 0, {1});
  damaged.back() ^= std::byte{1};
  receive(damaged, host(0));
  EXPECT_EQ(1U, server_.counters().malformed[static_cast<std::size_t>(wire::ParseError::checksum)]);
  Common down = of(folded, 0);
  down.type = Type::parameter;
  receive(parameter_bytes_of(down), rack);
  EXPECT_EQ(1U, server_.counters().unexpected_type);
  EXPECT_TRUE(silent());
  EXPECT_EQ(10U, counters().packets);
  EXPECT_EQ(0U, server_.incomplete(epoch));
  single(0, 0, {1}, [](Common& c) { c.rank_epoch = folded; });  // a sum of one is a switch's
  EXPECT_EQ(1U, counters().added_single);
}

TEST_F(AtpServerTest, ARankAtTheServerIsNobodysSwitch) {
  start(job({{at_server}, {0, 0, at_server}}));
  receive(gradient_bytes_of(of(102, 0), topology_.path(2), {1}), rack);
  receive(gradient_bytes_of(of(100, 0), topology_.path(0), {1}), host(2));
  EXPECT_EQ(2U, counters().dropped_source);
  direct(2, 0, {1});
  EXPECT_EQ(1U, counters().added_single);
  direct(2, 0, {1});
  EXPECT_EQ(3U, take_packets(sink_).size());
}

TEST_F(AtpServerTest, WhereSumsSaturateThereAreNoWideOnes) {
  ServerJobConfig c = job();
  c.overflow = Overflow::saturating;
  start(c);
  sum(3, 0, {1}, nothing, {1});
  EXPECT_EQ(1U, counters().dropped_shape);
  EXPECT_EQ(0U, server_.incomplete(epoch));
  sum(3, 0, {INT32_MAX});
  single(2, 0, {1});
  EXPECT_TRUE(one().common.floats);  // it saturated
}

TEST_F(AtpServerTest, AnUnknownJobIsAnsweredAtALimitedRate) {
  const Bytes packet = single_packet(0, 0, {1}, [](Common& c) { c.job_epoch = 1234; });
  receive(packet, port(50));
  const AnyPacket told = one();
  EXPECT_EQ(port(50), told.to);
  EXPECT_EQ(Type::unknown_job, told.common.type);
  EXPECT_EQ(1234U, told.common.job_epoch);
  EXPECT_EQ(100U, told.common.rank_epoch);
  for (int i = 0; i < 1000; ++i) receive(packet, port(50));
  EXPECT_EQ(63U, take_packets(sink_).size());
  now_ += 10ms;
  for (int i = 0; i < 1000; ++i) receive(packet, port(50));
  EXPECT_EQ(64U, take_packets(sink_).size());
  EXPECT_EQ(2001U, server_.counters().unknown_job);
  EXPECT_EQ(128U, server_.counters().unknown_job_replies);
}

// ---- what is lent to a sink does not change before its flush()

TEST_F(AtpServerTest, AResultLeavesBeforeItsPlaceIsTaken) {
  const Bytes first = sum_packet(7, 0, {1}), repeat = sum_packet(3, 0, {1}), second = sum_packet(7, ring, {50}),
              third = sum_packet(7, 2 * ring, {90});
  const RxView views[] = {{first, rack}, {repeat, rack}, {second, rack}, {third, rack}};
  server_.on_packets(views, false, now_, sink_);
  std::vector<Values> results;
  for (const AnyPacket& packet : take_packets(sink_)) results.push_back(packet.values);
  EXPECT_EQ((std::vector<Values>{{1}, {1}, {50}, {90}}), results);
}

TEST_F(AtpServerTest, AnAnsweredRepeatLeavesBeforeItsPlaceIsTaken) {
  sum(7, 0, {1});
  static_cast<void>(take_packets(sink_));
  const Bytes to_one = single_packet(0, 0, {1}), to_all = sum_packet(3, 0, {1}), next = single_packet(1, ring, {50});
  for (const Bytes& repeat : {to_one, to_all}) {
    start(job());
    sum(7, 0, {1});
    static_cast<void>(take_packets(sink_));
    const RxView views[] = {{repeat, rack}, {next, rack}};
    server_.on_packets(views, false, now_, sink_);
    EXPECT_EQ((Values{1}), one().values);
  }
}

TEST_F(AtpServerTest, AQuestionLeavesBeforeItsAnswerIsWritten) {
  ServerJobConfig c = job({{at_server}, {0}});
  start(c);
  Common integers = of(100, 0), reals = of(100, 0);
  integers.overflow = true;
  reals.floats = reals.direct = true;
  const Bytes first = gradient_bytes_of(integers, topology_.path(0), {1}),
              second = gradient_bytes_of(reals, topology_.path(0), bits({2.5F}));
  const RxView views[] = {{first, rack}, {second, rack}};
  server_.on_packets(views, false, now_, sink_);
  const auto sent = take_packets(sink_);
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(Type::ask, sent[0].common.type);
  EXPECT_EQ(bits({2.5F}), sent[1].values);
}

// ---- jobs, and state as a value

TEST_F(AtpServerTest, StalledChunksAreToldOldestFirst) {
  single(1, 5, {1});
  sum(3, 2, {1});
  sum(7, 3, {1});
  const auto all = server_.stalled(epoch, 9);
  ASSERT_EQ(2U, all.size());
  EXPECT_EQ(2U, all[0].sequence);
  EXPECT_EQ(ranks_of({2}), all[0].missing);
  EXPECT_EQ(5U, all[1].sequence);
  EXPECT_EQ(ranks_of({0, 2}), all[1].missing);
  EXPECT_EQ(1U, server_.stalled(epoch, 1).size());
  EXPECT_EQ(2U, server_.incomplete(epoch));
  EXPECT_TRUE(server_.stalled(epoch + 1, 9).empty());
  EXPECT_EQ(0U, server_.incomplete(epoch + 1));
  EXPECT_EQ(nullptr, server_.job_counters(epoch + 1));
}

TEST_F(AtpServerTest, AJobNeedsAllItsMemoryAndAnEpochOfItsOwn) {
  ServerJobConfig c = job();
  c.epoch = epoch + 1;
  const auto memory = std::as_writable_bytes(std::span(memory_for(c)));
  EXPECT_FALSE(server_.add_job(c, memory.first(memory.size() - 1)));
  EXPECT_TRUE(server_.add_job(c, memory));
  EXPECT_FALSE(server_.add_job(c, memory));
  server_.remove_job(epoch + 1);
  EXPECT_TRUE(server_.add_job(c, memory));
}

TEST_F(AtpServerTest, ItsQueueIsLongFromWhatItsJobsRanksMaySendAtFirst) {
  const std::uint64_t of_one = topology_.world_size() * 4 * 60'000U;
  EXPECT_EQ(of_one, server_.long_queue());
  ServerJobConfig c = job();
  c.epoch = epoch + 1;
  ASSERT_TRUE(server_.add_job(c, std::as_writable_bytes(std::span(memory_for(c)))));
  EXPECT_EQ(of_one + c.topology.world_size() * 4 * 60'000U, server_.long_queue());
  server_.remove_job(epoch);
  server_.remove_job(epoch);
  server_.remove_job(epoch + 1);
  EXPECT_EQ(0U, server_.long_queue());
}

// Small packets or few ranks have eight buffers for floats; those of many ranks have one, however long it is.
TEST_F(AtpServerTest, MemoryDependsOnTheWindowAndNotOnTensors) {
  EXPECT_EQ(Server::memory_bytes(256, 2, 1024) +
                2 * 2 * (Server::memory_bytes(256, 3, 1024) - Server::memory_bytes(256, 2, 1024)) / 2,
            Server::memory_bytes(256, 4, 1024));
  EXPECT_GE(Server::memory_bytes(10880, 1, 1024), std::size_t{10880} * 4 * 1024);
  EXPECT_LT(Server::memory_bytes(10880, 1, 1024), std::size_t{10880} * 4 * 1024 * 2);
}

TEST_F(AtpServerTest, JobsDoNotSeeEachOther) {
  ServerJobConfig c = job();
  c.epoch = epoch + 1;
  ASSERT_TRUE(server_.add_job(c, std::as_writable_bytes(std::span(memory_for(c)))));
  single(0, 0, {1});
  receive(sum_packet(6, 0, {100}, [](Common& common) { ++common.job_epoch; }), rack);
  EXPECT_TRUE(silent());
  sum(6, 0, {2});
  EXPECT_EQ((Values{3}), one().values);
}

TEST_F(AtpServerTest, ACopyHasTheSameStateAndGoesItsOwnWay) {
  const auto state = [](const Server& s) {
    Bytes bytes;
    s.append_state(bytes);
    return bytes;
  };
  ServerJobConfig c = job();
  c.window = 16;
  start(c);
  ServerJobConfig second = c;
  second.epoch = epoch + 1;
  ASSERT_TRUE(server_.add_job(second, std::as_writable_bytes(std::span(memory_for(second)))));
  single(0, 0, {INT32_MAX});
  for (std::uint64_t sequence = 1; sequence < 10; ++sequence) overflow(sequence);  // one is queued
  floats(1, 1, {2});
  sum(3, 11, {INT32_MAX}, nothing, {3});
  sum(3, 12, {INT32_MIN}, nothing, {1});
  single(2, 12, {-1});  // complete, and was wide on its way
  for (std::uint32_t rank = 0; rank < 3; ++rank) floats(rank, 2, {1});
  static_cast<void>(take_packets(sink_));

  Server copy(server_);
  copy.move_memory(epoch, std::as_writable_bytes(std::span(memory_for(c))));
  copy.move_memory(epoch + 1, std::as_writable_bytes(std::span(memory_for(second))));
  EXPECT_EQ(state(server_), state(copy));
  sum(6, 0, {5});  // wide here, and asked for
  floats(0, 1, {7});
  EXPECT_NE(state(server_), state(copy));
  static_cast<void>(take_packets(sink_));
  server_ = copy;
  EXPECT_EQ(state(server_), state(copy));
  sum(6, 0, {-5});
  EXPECT_EQ((Values{INT32_MAX - 5}), one().values);
  const Bytes before = state(copy);
  server_ = std::move(copy);
  EXPECT_EQ(before, state(server_));
}

}  // namespace
}  // namespace netsum::atp
