// The switch with hand-made packets: each box of the paper's Figures 7 and 17, and what ours does beside them.
#include "protocol/atp/switch.h"

#include <gtest/gtest.h>

#include <malloc.h>
#include <algorithm>

#include <climits>
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
constexpr std::uint32_t slots = 4, longest = 8;
const Endpoint parent = port(99);

SwitchConfig config() {
  SwitchConfig c;
  c.slots = slots;
  c.packet_elements = longest;
  c.abandoned_after = 1s;
  return c;
}

// A switch with its memory. Two ranks are below it: 0 at port 10, 1 at port 11.
struct Place {
  std::vector<CacheLine> memory = std::vector<CacheLine>(Switch::memory_bytes(config()) / sizeof(CacheLine));
  Switch at{config(), std::as_writable_bytes(std::span(memory))};
};

SwitchJobConfig job(std::uint64_t job_epoch = epoch) {
  SwitchJobConfig c;
  c.epoch = job_epoch;
  c.folded_epochs = folded;
  c.packet_elements = longest;
  c.level = 0;
  c.next_level = 1;
  c.parent = parent;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    c.children.push_back({port(static_cast<std::uint16_t>(10 + rank)), false, 100 + rank, ranks_of({rank})});
  }
  return c;
}

Directions path(std::uint32_t rank) {
  return {0, {2, 1, 0, 0}, {1U << rank, 1, 0, 0}};
}

Common of(std::uint32_t rank, std::uint64_t sequence) {
  Common c;
  c.type = Type::gradient;
  c.job_epoch = epoch;
  c.sequence = sequence;
  c.rank_epoch = 100 + rank;
  c.signature = signature;
  c.index = static_cast<std::uint32_t>(sequence % slots);
  return c;
}

class AtpSwitchTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(at().add_job(job())); }

  Switch& at() { return place_->at; }
  void replace(const SwitchJobConfig& c) {
    at().remove_job(epoch);
    ASSERT_TRUE(at().add_job(c));
  }

  void receive(const Bytes& packet, const Endpoint& source, bool congested_queue = false, bool congested_packet = false) {
    const RxView view{packet, source, congested_packet};
    at().on_packets({&view, 1}, congested_queue, now_, sink_);
  }
  void receive(std::uint32_t rank, const Common& common, const Values& values = {1},
               const std::vector<std::int16_t>& high = {}) {
    receive(gradient_bytes_of(common, path(rank), values, high), port(static_cast<std::uint16_t>(10 + rank)));
  }
  template <class Change>
  void receive_changed(std::uint32_t rank, Common common, Change change, const Values& values = {1}) {
    change(common);
    receive(rank, common, values);
  }
  Common answer(Type type, std::uint64_t sequence) {
    Common c = of(0, sequence);
    c.type = type;
    c.rank_epoch = folded;
    return c;
  }

  // The one packet that was sent since the last call.
  AnyPacket one() {
    const auto packets = take_packets(sink_);
    EXPECT_EQ(1U, packets.size());
    return packets.empty() ? AnyPacket{} : packets.front();
  }
  bool silent() { return take_packets(sink_).empty(); }
  const SwitchJobCounters& counters() { return *at().job_counters(epoch); }

  std::unique_ptr<Place> place_ = std::make_unique<Place>();
  RecordingSink sink_;
  Time now_{std::chrono::seconds(10)};
};

// ---- Figure 7

TEST_F(AtpSwitchTest, AddsUpAndSendsTheSumToItsParent) {
  receive(0, of(0, 0), {1, 2, 3});
  EXPECT_TRUE(silent());  // 6: the packet goes no further
  EXPECT_EQ(1U, at().slots_in_use());
  receive(1, of(1, 0), {10, 20, 30});
  const AnyPacket sum = one();
  EXPECT_EQ(parent, sum.to);
  EXPECT_EQ(Type::gradient, sum.common.type);
  EXPECT_EQ((Values{11, 22, 33}), sum.values);
  EXPECT_EQ((Directions{1, {2, 1, 0, 0}, {3, 1, 0, 0}}), sum.directions);
  EXPECT_EQ(folded, sum.common.rank_epoch);
  EXPECT_EQ(signature, sum.common.signature);
  EXPECT_FALSE(sum.common.resend || sum.common.ecn || sum.common.collision || sum.common.overflow || sum.common.wide);
  EXPECT_EQ(1U, at().slots_in_use());  // until the parameter packet
  EXPECT_EQ(2U, counters().added);
  EXPECT_EQ(1U, counters().completed);
  EXPECT_EQ(1U, counters().allocated);
}

TEST_F(AtpSwitchTest, AParameterPacketFreesItsSlotAndGoesToEverybody) {
  receive(0, of(0, 0));
  receive(1, of(1, 0));
  static_cast<void>(take_packets(sink_));
  const Bytes result = parameter_bytes_of(answer(Type::parameter, 0), 3, {2});
  receive(result, parent);
  EXPECT_EQ(0U, at().slots_in_use());
  const auto sent = sink_.take();
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(port(10), sent[0].to);
  EXPECT_EQ(port(11), sent[1].to);
  EXPECT_EQ(result, sent[0].bytes);  // as it came
  EXPECT_EQ(1U, counters().deallocated);
  EXPECT_EQ(1U, counters().parameters);
}

// The slot is free by the time that the next rank's packet comes: alone it would wait for the others' in vain.
TEST_F(AtpSwitchTest, WhereOnePacketFoundNoSlotTheRestOfItsChunkTakesNone) {
  receive(0, of(0, 0));
  receive(1, of(1, 0));
  receive(0, of(0, 4), {5});  // the same slot
  receive(parameter_bytes_of(answer(Type::parameter, 0)), parent);
  static_cast<void>(take_packets(sink_));
  receive(1, of(1, 4), {6});
  const AnyPacket rest = one();
  EXPECT_EQ((Values{6}), rest.values);
  EXPECT_TRUE(rest.common.resend);
  EXPECT_FALSE(rest.common.collision);  // another index would not be freer
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_EQ(1U, counters().collisions);
  EXPECT_EQ(1U, counters().rest_passed);
  receive(0, of(0, 8));  // the next chunk there takes it
  receive(1, of(1, 8));
  EXPECT_FALSE(one().common.resend);
}

// ---- Figures 7 and 17 as printed

TEST_F(AtpSwitchTest, ByThePapersRulesTheRestOfACollidedChunkTakesASlot) {
  SwitchJobConfig c = job();
  c.rules = Rules::paper;
  replace(c);
  receive(0, of(0, 0));
  receive(1, of(1, 4));  // the same slot
  EXPECT_TRUE(one().common.collision);
  receive(parameter_bytes_of(answer(Type::parameter, 0), 3, {2}), parent);
  static_cast<void>(take_packets(sink_));
  receive(0, of(0, 4));
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, at().slots_in_use()) << "and waits for what is past it";
  receive(0, of(0, 4));
  EXPECT_TRUE(silent()) << "a repeat is dropped";
}

TEST_F(AtpSwitchTest, ByThePapersRulesTheFirstResendEmptiesTheSlotAndNoRankIsTold) {
  SwitchJobConfig c = job();
  c.rules = Rules::paper;
  replace(c);
  receive(0, of(0, 0), {1});
  receive(1, of(1, 0), {2});
  static_cast<void>(take_packets(sink_));
  receive_changed(0, of(0, 0), [](Common& changed) { changed.resend = true; });
  EXPECT_EQ((Values{3}), one().values);
  EXPECT_EQ(0U, at().slots_in_use());
  receive_changed(1, of(1, 0), [](Common& changed) { changed.resend = true; }, {2});
  EXPECT_EQ((Values{2}), one().values) << "passed on";
  for (std::uint64_t sequence = 4; sequence < 8; ++sequence) receive(1, of(1, sequence));
  for (std::uint64_t sequence = 5; sequence < 8; ++sequence) receive(0, of(0, sequence));
  EXPECT_EQ(3U, take_packets(sink_).size()) << "sums alone";
  EXPECT_EQ(0U, counters().losses_told);
}

TEST_F(AtpSwitchTest, AParameterPacketOfAnotherSequenceNumberFreesNothing) {
  receive(0, of(0, 0));
  receive(parameter_bytes_of(answer(Type::parameter, 4)), parent);  // the same slot
  EXPECT_EQ(1U, at().slots_in_use());
  EXPECT_EQ(2U, take_packets(sink_).size());  // but it is passed on
  receive(1, of(1, 0), {2});
  EXPECT_EQ((Values{3}), one().values);
}

TEST_F(AtpSwitchTest, APacketThatCollidesGoesPastTheSlotsAndSaysSo) {
  receive(0, of(0, 0), {5});
  receive(1, of(1, 4), {7, 8});
  const AnyPacket passed = one();
  EXPECT_EQ(parent, passed.to);
  EXPECT_TRUE(passed.common.resend);  // no switch further on takes it up
  EXPECT_TRUE(passed.common.collision);
  EXPECT_EQ((Values{7, 8}), passed.values);
  EXPECT_EQ(101U, passed.common.rank_epoch);
  EXPECT_EQ(4U, passed.common.sequence);
  EXPECT_EQ((Directions{1, {2, 1, 0, 0}, {2, 1, 0, 0}}), passed.directions);
  EXPECT_EQ(1U, counters().collisions);
  receive(1, of(1, 0), {1});  // who was first keeps the slot
  EXPECT_EQ((Values{6}), one().values);
}

TEST_F(AtpSwitchTest, AnIndexBeyondTheSlotsIsTakenModuloTheirNumber) {
  receive_changed(0, of(0, 0), [](Common& c) { c.index = 0xffffffff; });
  receive_changed(1, of(1, 0), [](Common& c) { c.index = 0xffffffff; });
  EXPECT_EQ((Values{2}), one().values);
}

TEST_F(AtpSwitchTest, ARepeatIsNotAddedAndItsSenderLearnsWhomItWaitsFor) {
  receive(0, of(0, 0));
  receive(0, of(0, 0));
  const AnyPacket waiting = one();
  EXPECT_EQ(Type::waiting, waiting.common.type);
  EXPECT_EQ(port(10), waiting.to);
  EXPECT_EQ(ranks_of({1}), waiting.missing);
  EXPECT_EQ(folded, waiting.common.rank_epoch);
  EXPECT_EQ(signature, waiting.common.signature);
  receive(0, of(0, 0));  // lately told
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, counters().repeats_waiting);
  EXPECT_EQ(1U, counters().repeats_silent);
  now_ += 1ms;
  receive(0, of(0, 0));
  EXPECT_EQ(ranks_of({1}), one().missing);
  receive(1, of(1, 0), {4});
  EXPECT_EQ((Values{5}), one().values);
  now_ += 1ms;
  receive(0, of(0, 0));  // the sum went on: nobody here is missing
  EXPECT_TRUE(one().missing.empty());
}

TEST_F(AtpSwitchTest, RanksAreToldToWaitIndependently) {
  replace([] {
    SwitchJobConfig c = job();
    c.children.push_back({port(12), false, 102, ranks_of({2})});
    return c;
  }());
  const auto repeat = [&](std::uint32_t rank) {
    receive(gradient_bytes_of(of(rank, 0), {0, {3, 1, 0, 0}, {1U << rank, 1, 0, 0}}, {1}),
            port(static_cast<std::uint16_t>(10 + rank)));
  };
  repeat(0);
  repeat(1);
  repeat(0);
  repeat(1);
  const auto told = take_packets(sink_);
  ASSERT_EQ(2U, told.size());
  EXPECT_EQ(ranks_of({2}), told[0].missing);
  EXPECT_EQ(port(11), told[1].to);
}

// Rank 0 has the result and sends what comes one window later, in the same slot; a copy of its first packet comes late.
TEST_F(AtpSwitchTest, CopiesOnePhaseLateAreNotCounted) {
  receive(0, of(0, 0), {1});
  receive(1, of(1, 0), {2});
  receive(parameter_bytes_of(answer(Type::parameter, 0), 0, {3}), parent);
  receive(0, of(0, 4), {10});
  static_cast<void>(take_packets(sink_));
  receive(0, of(0, 0), {1});
  EXPECT_TRUE(one().common.collision);  // to the server, which knows it as old
  receive(1, of(1, 4), {20});
  EXPECT_EQ((Values{30}), one().values);
}

// A late copy takes a slot of its own; what the server answers frees it.
TEST_F(AtpSwitchTest, ASlotOfALateCopyIsFreedByDone) {
  receive(0, of(0, 1));
  receive(parameter_bytes_of(answer(Type::done, 1)), parent);
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_TRUE(silent());  // no rank waits for it, and no switch is below
  EXPECT_EQ(1U, counters().dones);
}

TEST_F(AtpSwitchTest, AnAskFreesItsSlotAndGoesToEverybody) {
  receive(0, of(0, 1));
  receive(parameter_bytes_of(answer(Type::ask, 1)), parent);
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_EQ(2U, take_packets(sink_).size());
  EXPECT_EQ(1U, counters().asks);
}

// ---- Figure 17

TEST_F(AtpSwitchTest, AResendThatWasMissingCompletesTheSum) {
  receive(0, of(0, 0), {1});
  receive_changed(1, of(1, 0), [](Common& c) { c.resend = true; }, {20});  // 6: it was not there yet
  const AnyPacket merged = one();
  EXPECT_EQ((Values{21}), merged.values);
  EXPECT_EQ(3U, merged.directions.word(0));
  EXPECT_EQ(1, merged.directions.level);
  EXPECT_TRUE(merged.common.resend);
  EXPECT_FALSE(merged.common.collision);
  EXPECT_EQ(folded, merged.common.rank_epoch);
  EXPECT_EQ(1U, at().slots_in_use()) << "until its result comes";
  EXPECT_EQ(1U, counters().resends_merged);
  EXPECT_EQ(1U, counters().completed);
}

// The others' packets may be on their way, so a probe costs no sum.
TEST_F(AtpSwitchTest, ARanksSecondResendSendsUpWhatIsThereAndFreesTheSlot) {
  receive(0, of(0, 0), {1});
  receive_changed(0, of(0, 0), [](Common& c) { c.resend = true; });
  const AnyPacket waiting = one();
  EXPECT_EQ(Type::waiting, waiting.common.type);
  EXPECT_EQ(ranks_of({1}), waiting.missing);
  receive_changed(0, of(0, 0), [](Common& c) { c.resend = true; });
  const AnyPacket partial = one();
  EXPECT_EQ((Values{1}), partial.values);
  EXPECT_EQ(1U, partial.directions.word(0));
  EXPECT_TRUE(partial.common.resend);
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_EQ(1U, counters().deallocated);
}

TEST_F(AtpSwitchTest, AResendThatFindsNoSlotIsPassedOnAndTakesNone) {
  receive_changed(1, of(1, 0), [](Common& c) { c.resend = true; }, {20});
  const AnyPacket passed = one();
  EXPECT_TRUE(passed.common.resend);
  EXPECT_FALSE(passed.common.collision);
  EXPECT_EQ(2U, passed.directions.word(0));
  EXPECT_EQ(101U, passed.common.rank_epoch);
  EXPECT_EQ(0U, at().slots_in_use());
  receive(0, of(0, 4));
  receive_changed(1, of(1, 0), [](Common& c) { c.resend = true; });  // the slot is another chunk's
  EXPECT_FALSE(one().common.collision);
  EXPECT_EQ(1U, at().slots_in_use());
  EXPECT_EQ(2U, counters().resends_passed);
}

// One repeat of the sum serves all ranks that resend because it was lost; a rank's second resend empties the slot.
TEST_F(AtpSwitchTest, ACompleteSumIsSentAgainByTheFirstResendOfAll) {
  receive(0, of(0, 0), {1});
  receive(1, of(1, 0), {2});
  static_cast<void>(take_packets(sink_));
  receive_changed(0, of(0, 0), [](Common& c) { c.resend = true; });
  const AnyPacket again = one();
  EXPECT_EQ((Values{3}), again.values);
  EXPECT_EQ(3U, again.directions.word(0));
  EXPECT_TRUE(again.common.resend);
  EXPECT_EQ(1U, at().slots_in_use());
  receive_changed(1, of(1, 0), [](Common& c) { c.resend = true; });
  EXPECT_TRUE(take_packets(sink_).empty());
  receive_changed(1, of(1, 0), [](Common& c) { c.resend = true; });
  EXPECT_EQ((Values{3}), one().values);
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_EQ(3U, counters().resends_merged);
}

TEST_F(AtpSwitchTest, ARankWhosePacketIsOvertakenIsToldOnce) {
  for (std::uint64_t sequence = 0; sequence < 4; ++sequence) receive(1, of(1, sequence));
  receive(0, of(0, 1));
  receive(0, of(0, 2));
  EXPECT_EQ(2U, take_packets(sink_).size());  // sums; packets may be reordered
  receive(0, of(0, 3));
  const auto told = take_packets(sink_);
  ASSERT_EQ(2U, told.size());
  EXPECT_EQ(Type::waiting, told[0].common.type);
  EXPECT_EQ(port(10), told[0].to);
  EXPECT_EQ(0U, told[0].common.sequence);
  EXPECT_EQ(0U, told[0].common.index);
  EXPECT_EQ(ranks_of({0}), told[0].missing);
  EXPECT_EQ(parent, told[1].to);
  EXPECT_EQ(1U, counters().losses_told);
  receive(0, of(0, 0));  // the repeat completes the sum
  EXPECT_EQ(3U, one().directions.word(0));
  EXPECT_EQ(1U, counters().losses_told);
}

// The chunk's slot is taken after those of later chunks, by another rank.
TEST_F(AtpSwitchTest, ARankThatIsAheadIsToldAndNoOther) {
  for (std::uint64_t sequence = 1; sequence < 4; ++sequence) receive(0, of(0, sequence));
  EXPECT_TRUE(silent());
  receive(1, of(1, 0));
  const AnyPacket told = one();
  EXPECT_EQ(Type::waiting, told.common.type);
  EXPECT_EQ(port(10), told.to);
  EXPECT_EQ(ranks_of({0}), told.missing);
  for (std::uint64_t sequence = 1; sequence < 4; ++sequence) {
    receive(1, of(1, sequence));
    EXPECT_EQ(3U, one().directions.word(0));
  }
  EXPECT_EQ(1U, counters().losses_told);
}

// ---- what the paper does not have

TEST_F(AtpSwitchTest, WhatIsForTheServerAloneIsNotTouched) {
  receive(0, of(0, 0), {1});
  receive_changed(1, of(1, 0), [](Common& c) { c.direct = true; }, {20});
  const AnyPacket passed = one();
  EXPECT_TRUE(passed.common.direct);
  EXPECT_FALSE(passed.common.resend);
  EXPECT_EQ((Values{20}), passed.values);
  EXPECT_EQ(1, passed.directions.level);
  EXPECT_EQ(1U, at().slots_in_use());
  EXPECT_EQ(1U, counters().direct_passed);
}

TEST_F(AtpSwitchTest, AnotherCallUnderTheSameNumberGoesToTheServer) {
  receive(0, of(0, 0), {1});
  receive_changed(1, of(1, 0), [](Common& c) { c.signature = 6; }, {9});
  const AnyPacket passed = one();
  EXPECT_EQ(6U, passed.common.signature);
  EXPECT_EQ((Values{9}), passed.values);
  EXPECT_TRUE(passed.common.resend);
  EXPECT_FALSE(passed.common.collision);
  EXPECT_EQ(1U, counters().mismatch_passed);
  receive(1, of(1, 0), {2});
  EXPECT_EQ((Values{3}), one().values);
}

TEST_F(AtpSwitchTest, ValuesOfAnotherLengthAreNotAdded) {
  receive(0, of(0, 0), {1});
  receive(1, of(1, 0), {1, 2});
  EXPECT_EQ(1U, counters().dropped_shape);
  receive_changed(1, of(1, 0), [](Common& c) { c.resend = true; }, {1, 2});
  EXPECT_EQ(2U, counters().dropped_shape);
  EXPECT_TRUE(silent());
  receive(1, of(1, 0), {2});
  EXPECT_EQ((Values{3}), one().values);
}

// All but the root of a broadcast have nothing to add.
TEST_F(AtpSwitchTest, EmptyContributionsCountWithoutValues) {
  receive(0, of(0, 0), {});
  receive(1, of(1, 0), {4, 5});
  EXPECT_EQ((Values{4, 5}), one().values);
  receive(0, of(0, 1), {6});
  receive(1, of(1, 1), {});
  EXPECT_EQ((Values{6}), one().values);
  receive(0, of(0, 2), {});
  receive(1, of(1, 2), {});
  EXPECT_EQ(Values{}, one().values);
}

TEST_F(AtpSwitchTest, MarksOfAllPacketsOfASumAreInIt) {
  const auto sum_with = [&](std::uint64_t sequence, auto mark) {
    mark(sequence);
    receive(1, of(1, sequence));
    return one().common.ecn;
  };
  EXPECT_FALSE(sum_with(0, [&](std::uint64_t s) { receive(0, of(0, s)); }));
  EXPECT_TRUE(sum_with(1, [&](std::uint64_t s) { receive_changed(0, of(0, s), [](Common& c) { c.ecn = true; }); }));
  EXPECT_TRUE(sum_with(2, [&](std::uint64_t s) {  // the IP header's
    receive(gradient_bytes_of(of(0, s), path(0), {1}), port(10), false, true);
  }));
  EXPECT_TRUE(sum_with(3, [&](std::uint64_t s) {  // its own queue's
    receive(gradient_bytes_of(of(0, s), path(0), {1}), port(10), true);
  }));
  EXPECT_EQ(3U, counters().marked);
}

// Where all ranks are on this host.
TEST_F(AtpSwitchTest, ASumHasNoChecksumIfNoneOfItsPacketsHas) {
  const auto unchecked = [](Common& c) { c.unchecked = true; };
  receive_changed(0, of(0, 0), unchecked);
  receive_changed(1, of(1, 0), unchecked);
  EXPECT_TRUE(one().common.unchecked);
  receive(0, of(0, 1));
  receive_changed(1, of(1, 1), unchecked);
  EXPECT_FALSE(one().common.unchecked);
  Common parameter = answer(Type::parameter, 1);
  receive(parameter_bytes_of(parameter, 0, {1}), parent);
  for (const AnyPacket& packet : take_packets(sink_)) EXPECT_FALSE(packet.common.unchecked);
  // The slot forgets, and what it passes on stays as it was.
  receive_changed(0, of(0, 1 + slots), unchecked);
  receive_changed(1, of(1, 1 + slots), unchecked);
  EXPECT_TRUE(one().common.unchecked);
  receive_changed(0, of(0, 1 + slots), [](Common& c) { c.unchecked = c.direct = true; });
  EXPECT_TRUE(one().common.unchecked);
}

TEST_F(AtpSwitchTest, AMarkOnARepeatIsKept) {  // Fig. 7, 7
  receive(0, of(0, 0));
  receive_changed(0, of(0, 0), [](Common& c) { c.ecn = true; });
  static_cast<void>(take_packets(sink_));
  receive(1, of(1, 0));
  EXPECT_TRUE(one().common.ecn);
  receive(0, of(0, 1));
  receive_changed(0, of(0, 1), [](Common& c) { c.resend = c.ecn = true; });
  static_cast<void>(take_packets(sink_));
  receive(1, of(1, 1));
  EXPECT_TRUE(one().common.ecn);
  receive(0, of(0, 2));  // not of the chunk before in no slot
  receive(1, of(1, 2));
  EXPECT_FALSE(one().common.ecn);
  receive(parameter_bytes_of(answer(Type::parameter, 2)), parent);
}

// What the IP header says ends at this switch.
TEST_F(AtpSwitchTest, AMarkOnAParameterPacketsWayIsPassedOn) {
  const auto passed_on = [&](const Common& common, bool queue, bool packet) {
    receive(parameter_bytes_of(common, 3, {7}), parent, queue, packet);
    const auto sent = take_packets(sink_);
    EXPECT_EQ(common.type == Type::done ? 0U : 2U, sent.size());
    for (const AnyPacket& one : sent) {
      EXPECT_EQ(common.sequence, one.common.sequence);
      if (common.type == Type::parameter) {
        EXPECT_EQ(3U, one.next_index);
        EXPECT_EQ((Values{7}), one.values);
      }
    }
    return !sent.empty() && sent.back().common.ecn;
  };
  Common result = answer(Type::parameter, 0);
  EXPECT_FALSE(passed_on(result, false, false));
  EXPECT_TRUE(passed_on(result, true, false));
  EXPECT_TRUE(passed_on(result, false, true));
  result.ecn = true;
  EXPECT_TRUE(passed_on(result, false, false));
  EXPECT_TRUE(passed_on(result, true, true));
  EXPECT_EQ(2U, counters().marked);
  receive(parameter_bytes_of(answer(Type::ask, 0)), parent, true);  // a question has no mark
  EXPECT_FALSE(take_packets(sink_).at(0).common.ecn);
}

TEST_F(AtpSwitchTest, AMarkIsForgottenWithTheSlot) {
  receive_changed(0, of(0, 0), [](Common& c) { c.ecn = c.overflow = true; });
  receive(parameter_bytes_of(answer(Type::parameter, 0)), parent);
  static_cast<void>(take_packets(sink_));
  receive(0, of(0, 4));
  receive(1, of(1, 4));
  const AnyPacket sum = one();
  EXPECT_FALSE(sum.common.ecn);
  EXPECT_FALSE(sum.common.overflow);
}

TEST_F(AtpSwitchTest, ASumThatLeavesInt32IsWide) {
  receive(0, of(0, 0), {INT32_MAX, 1, INT32_MIN});
  receive(1, of(1, 0), {1, 2, -1});
  const AnyPacket sum = one();
  EXPECT_TRUE(sum.common.wide);
  EXPECT_FALSE(sum.common.overflow);  // it may still come back
  EXPECT_EQ((Values{INT32_MIN, 3, INT32_MAX}), sum.values);
  EXPECT_EQ((std::vector<std::int16_t>{1, 0, -1}), sum.high);
  // The slot's next chunk has nothing of it.
  receive(parameter_bytes_of(answer(Type::parameter, 0)), parent);
  static_cast<void>(take_packets(sink_));
  receive(0, of(0, 4), {1, 1, 1});
  receive(1, of(1, 4), {1, 1, 1});
  EXPECT_FALSE(one().common.wide);
}

TEST_F(AtpSwitchTest, AnOverflowedValueMakesTheSumOverflowed) {
  receive_changed(0, of(0, 0), [](Common& c) { c.overflow = true; });
  receive(1, of(1, 0));
  EXPECT_TRUE(one().common.overflow);
  receive(0, of(0, 1));
  receive_changed(1, of(1, 1), [](Common& c) { c.overflow = true; });
  EXPECT_TRUE(one().common.overflow);
  receive(0, of(0, 2));
  receive_changed(1, of(1, 2), [](Common& c) { c.overflow = true; }, {});
  EXPECT_TRUE(one().common.overflow);
}

// §B.3: whatever goes up says the largest exponent of what is in it, and what comes down is not changed.
TEST_F(AtpSwitchTest, TheLargestExponentOfASumIsInIt) {
  const auto with = [&](std::uint32_t rank, std::uint64_t sequence, std::uint8_t exponent, auto change) {
    Common c = of(rank, sequence);
    c.exponent = exponent;
    change(c);
    receive(rank, c);
  };
  const auto plain = [](Common&) {};
  const auto resend = [](Common& c) { c.resend = true; };
  with(0, 0, 140, plain);
  with(1, 0, 130, plain);
  EXPECT_EQ(140, one().common.exponent);
  with(0, 1, 130, plain);
  with(1, 1, 140, plain);
  EXPECT_EQ(140, one().common.exponent);
  with(0, 2, 150, plain);
  with(0, 2, 120, resend);  // is in it already
  static_cast<void>(take_packets(sink_));
  with(0, 2, 120, resend);
  EXPECT_EQ(150, one().common.exponent);
  with(1, 2, 120, plain);  // the slot is another life's
  with(1, 2, 110, resend);
  static_cast<void>(take_packets(sink_));
  with(1, 2, 110, resend);
  EXPECT_EQ(120, one().common.exponent);
  with(0, 3, 100, resend);  // none is free of what went before: passed on
  EXPECT_EQ(100, one().common.exponent);
  with(0, slots, 90, plain);  // collides
  EXPECT_TRUE(take_packets(sink_).at(0).common.exponent == 90);
  with(0, 3, 80, [](Common& c) { c.direct = true; });
  EXPECT_EQ(80, one().common.exponent);
  receive(parameter_bytes_of(answer(Type::parameter, 0)), parent);
  static_cast<void>(take_packets(sink_));
  with(0, 2 * slots, 0, plain);  // not the exponent of the chunk that was there
  with(1, 2 * slots, 0, plain);
  EXPECT_EQ(0, one().common.exponent);
  Common result = answer(Type::parameter, 1);
  result.exponent = 140;
  for (const bool marks : {false, true}) {
    receive(parameter_bytes_of(result, 0, {1}), parent, marks);
    for (const AnyPacket& packet : take_packets(sink_)) EXPECT_EQ(140, packet.common.exponent);
  }
}

TEST_F(AtpSwitchTest, IntegersWrap) {
  receive_changed(0, of(0, 0), [](Common& c) { c.integers = true; }, {INT32_MAX});
  receive_changed(1, of(1, 0), [](Common& c) { c.integers = true; }, {1});
  const AnyPacket sum = one();
  EXPECT_EQ((Values{INT32_MIN}), sum.values);
  EXPECT_FALSE(sum.common.wide || sum.common.overflow);
  EXPECT_TRUE(sum.common.integers);
}

TEST_F(AtpSwitchTest, SaturatingSumsStayAtTheEndAndSayOverflow) {
  SwitchJobConfig c = job();
  c.overflow = Overflow::saturating;
  replace(c);
  receive(0, of(0, 0), {INT32_MAX, 1});
  receive(1, of(1, 0), {1, 2});
  const AnyPacket sum = one();
  EXPECT_EQ((Values{INT32_MAX, 3}), sum.values);
  EXPECT_TRUE(sum.common.overflow);
  EXPECT_FALSE(sum.common.wide);
}

// A wide sum took a slot in which it was not, and kept it from the others.
TEST_F(AtpSwitchTest, WhereSumsSaturateAWideOneTakesNoSlot) {
  SwitchJobConfig c = job();
  c.overflow = Overflow::saturating;
  replace(c);
  receive(0, of(0, 0), {1}, {1, 0});
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_EQ(1U, counters().dropped_shape);
  EXPECT_EQ(0U, counters().added);
  receive(0, of(0, 0), {1});
  receive(1, of(1, 0), {1}, {1, 0});
  EXPECT_EQ(2U, counters().dropped_shape);
  EXPECT_TRUE(silent());
}

// A sum is lent to the sink until its flush(): what comes in the same batch must not change it.
TEST_F(AtpSwitchTest, ASumLeavesBeforeItsSlotIsUsedAgain) {
  const std::vector<std::pair<Endpoint, Bytes>> batch{
      {port(10), gradient_bytes_of(of(0, 0), path(0), {1})},
      {port(11), gradient_bytes_of(of(1, 0), path(1), {2})},
      {parent, parameter_bytes_of(answer(Type::parameter, 0), 0, {3})},
      {port(10), gradient_bytes_of(of(0, 4), path(0), {50})},
      {port(11), gradient_bytes_of(of(1, 4), path(1), {60})},
  };
  std::vector<RxView> views;
  for (const auto& [source, bytes] : batch) views.push_back({bytes, source});
  at().on_packets(views, false, now_, sink_);
  std::vector<Values> sums;
  for (const AnyPacket& packet : take_packets(sink_)) {
    if (packet.common.type == Type::gradient) sums.push_back(packet.values);
  }
  EXPECT_EQ((std::vector<Values>{{3}, {110}}), sums);
}

TEST_F(AtpSwitchTest, ASumLeavesBeforeAResendSendsItAgain) {
  Common resend = of(1, 0);
  resend.resend = true;
  const Bytes first = gradient_bytes_of(of(0, 0), path(0), {1}), second = gradient_bytes_of(of(1, 0), path(1), {2}),
              again = gradient_bytes_of(resend, path(1), {2});
  const RxView views[] = {{first, port(10)}, {second, port(11)}, {again, port(11)}};
  at().on_packets(views, false, now_, sink_);
  const auto sums = take_packets(sink_);
  ASSERT_EQ(2U, sums.size());
  EXPECT_FALSE(sums[0].common.resend);
  EXPECT_TRUE(sums[1].common.resend);
}

// A repeat that is later than its result would keep a slot from the job itself: whoever is a window further has that result.
TEST_F(AtpSwitchTest, TheChunkOneWindowLaterTakesTheSlotOver) {
  SwitchJobConfig c = job();
  c.window = 4;
  replace(c);
  receive(0, of(0, 0), {5});
  receive_changed(1, of(1, 3), [](Common& common) { common.index = 0; });
  EXPECT_TRUE(one().common.collision);  // it may be under way with chunk 0
  receive(1, of(1, 4), {7});
  EXPECT_TRUE(silent());
  receive(0, of(0, 4), {1});
  EXPECT_EQ((Values{8}), one().values);
  EXPECT_EQ(1U, at().counters().reclaimed);
  EXPECT_EQ(1U, at().slots_in_use());
}

TEST_F(AtpSwitchTest, AnyParameterPacketFreesASlotThatWasAbandoned) {
  receive(0, of(0, 0));
  now_ += 1s - 1ns;
  receive(parameter_bytes_of(answer(Type::parameter, 4)), parent);
  EXPECT_EQ(1U, at().slots_in_use());
  now_ += 1ns;
  receive(parameter_bytes_of(answer(Type::parameter, 4)), parent);
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_EQ(1U, at().counters().reclaimed);
  EXPECT_EQ(0U, counters().deallocated);
}

TEST_F(AtpSwitchTest, WhatIsAddedShowsThatASlotIsNotAbandoned) {
  receive(0, of(0, 0));
  now_ += 900ms;
  receive(1, of(1, 0));
  now_ += 900ms;
  receive(parameter_bytes_of(answer(Type::parameter, 4)), parent);
  EXPECT_EQ(1U, at().slots_in_use());
}

// ---- more children than a word of a bitmap has bits

class AtpBroadSwitchTest : public AtpSwitchTest {
 protected:
  static constexpr std::uint32_t children = 256;
  void SetUp() override {
    SwitchJobConfig c = job();
    c.children.clear();
    for (std::uint32_t rank = 0; rank < children; ++rank) {
      c.children.push_back({port(static_cast<std::uint16_t>(10 + rank)), false, 100 + rank, ranks_of({rank})});
    }
    ASSERT_TRUE(at().add_job(c));
  }
  static Directions broad_path(std::uint32_t rank) {
    Directions path(0, {children, 1, 0, 0}, {0, 1, 0, 0});
    path.insert(0, rank);
    return path;
  }
  void contribute(std::uint32_t rank, bool resend = false) {
    Common c = of(rank, 0);
    c.resend = resend;
    receive(gradient_bytes_of(c, broad_path(rank), {1 << rank % 2}), port(static_cast<std::uint16_t>(10 + rank)));
  }
  void contribute_all_but(std::initializer_list<std::uint32_t> missing) {
    for (std::uint32_t rank = 0; rank < children; ++rank) {
      if (std::find(missing.begin(), missing.end(), rank) == missing.end()) contribute(rank);
    }
  }
};

TEST_F(AtpBroadSwitchTest, AddsUpAllAndCountsARepeatOnce) {
  contribute_all_but({33});
  EXPECT_TRUE(silent());
  contribute(200);  // its values are in the sum
  const AnyPacket waiting = one();
  EXPECT_EQ(Type::waiting, waiting.common.type);
  EXPECT_EQ(port(210), waiting.to);
  EXPECT_EQ(ranks_of({33}), waiting.missing);
  contribute(200);
  EXPECT_TRUE(silent()) << "told already";
  contribute(33);
  const AnyPacket sum = one();
  EXPECT_EQ((Values{128 + 2 * 128}), sum.values);
  Directions all(1, {children, 1, 0, 0}, {0, 1, 0, 0});
  all.set(0, wire::atp::Children::first(children));
  EXPECT_EQ(all, sum.directions);
  EXPECT_EQ(256U, counters().added);
  EXPECT_EQ(1U, counters().completed);
}

TEST_F(AtpBroadSwitchTest, AResendSendsUpWhatIsThere) {
  contribute_all_but({33, 200});
  contribute(199, true);
  static_cast<void>(take_packets(sink_));
  contribute(199, true);
  const AnyPacket partial = one();
  EXPECT_EQ((Values{127 + 2 * 127}), partial.values);
  EXPECT_EQ(254U, partial.directions.count(0));
  EXPECT_FALSE(partial.directions.children(0).contains(33));
  EXPECT_FALSE(partial.directions.children(0).contains(200));
  EXPECT_TRUE(partial.common.resend);
}

TEST_F(AtpBroadSwitchTest, OneRepeatOfTheSumServesAllThatResend) {
  contribute_all_but({});
  static_cast<void>(one());
  contribute(40, true);
  EXPECT_EQ(256U, one().directions.count(0));
  contribute(250, true);
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, at().slots_in_use());
  contribute(250, true);  // for the second time
  static_cast<void>(one());
  EXPECT_EQ(0U, at().slots_in_use());
}

// A header fits in front of the sum, however many children other levels of its way have.
TEST_F(AtpBroadSwitchTest, TheLongestHeaderGoesUpWithTheSum) {
  SwitchJobConfig c = job();
  c.children.resize(1);
  replace(c);
  Directions way(0, {1, 256, 256, 256}, {1, 0, 0, 0});
  for (std::size_t level = 1; level < 4; ++level) way.insert(level, 255);
  receive(gradient_bytes_of(of(0, 0), way, {7}), port(10));
  way.level = 1;
  const AnyPacket sum = one();
  EXPECT_EQ(way, sum.directions);
  EXPECT_EQ((Values{7}), sum.values);
}

// ---- two levels: this switch is the second, below it a switch (ranks 0 and 1, port 20) and rank 2 (port 12)

class AtpSecondLevelTest : public AtpSwitchTest {
 protected:
  void SetUp() override { ASSERT_TRUE(at().add_job(second_level())); }
  [[nodiscard]] static SwitchJobConfig second_level(Rules rules = Rules::netsum) {
    SwitchJobConfig c = job();
    c.rules = rules;
    c.level = 1;
    c.next_level = 2;
    c.children = {{port(20), true, 0, ranks_of({0, 1})}, {port(12), false, 102, ranks_of({2})}};
    return c;
  }
  static Directions rack(std::uint32_t bits) { return {1, {2, 2, 1, 0}, {bits, 1, 1, 0}}; }
  static Directions own() { return {1, {0, 2, 1, 0}, {0, 2, 1, 0}}; }
  void receive_rack(const Values& values, std::uint32_t bits = 3, bool resend = false,
                    const std::vector<std::int16_t>& high = {}) {
    Common c = of(0, 0);
    c.rank_epoch = bits == 3 ? folded : 100;
    c.resend = resend;
    receive(gradient_bytes_of(c, rack(bits), values, high), port(20));
  }
};

TEST_F(AtpSecondLevelTest, AddsUpRacksAndRanks) {
  receive_rack({3});
  EXPECT_TRUE(silent());
  receive(gradient_bytes_of(of(2, 0), own(), {4}), port(12));
  const AnyPacket sum = one();
  EXPECT_EQ((Values{7}), sum.values);
  EXPECT_EQ(2, sum.directions.level);
  EXPECT_EQ(3U, sum.directions.word(1));
}

TEST_F(AtpSecondLevelTest, PartOfARackIsPassedOnBehindTheSumAndFreesTheSlot) {  // Fig. 17, 3
  receive(gradient_bytes_of(of(2, 0), own(), {4}), port(12));
  receive_rack({1}, 1, true);
  const auto sent = take_packets(sink_);
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ((Values{4}), sent[0].values);
  EXPECT_EQ((Directions{2, {0, 2, 1, 0}, {0, 2, 1, 0}}), sent[0].directions);
  EXPECT_TRUE(sent[0].common.resend);
  EXPECT_EQ((Values{1}), sent[1].values);
  EXPECT_EQ((Directions{2, {2, 2, 1, 0}, {1, 1, 1, 0}}), sent[1].directions);
  EXPECT_EQ(100U, sent[1].common.rank_epoch);
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_EQ(1U, counters().deallocated);
  receive_rack({1}, 1, true);
  EXPECT_EQ((Values{1}), one().values);
  EXPECT_EQ(2U, counters().resends_passed);
  // Of what comes yet no sum can come about here.
  receive_rack({3});
  EXPECT_TRUE(one().common.resend);
  EXPECT_EQ(1U, counters().rest_passed);
  EXPECT_EQ(0U, at().slots_in_use());
}

// Each rack repairs its own losses. A rack that sends its sum again must not keep the others' from being added to it.
TEST_F(AtpSecondLevelTest, AWholeRackThatResendsWaitsForTheOthers) {
  receive_rack({3});
  receive_rack({3}, 3, true);
  EXPECT_TRUE(silent());
  Common rank = of(2, 0);
  rank.resend = true;
  receive(gradient_bytes_of(rank, own(), {4}), port(12));
  const AnyPacket sum = one();
  EXPECT_EQ((Values{7}), sum.values);
  EXPECT_EQ(3U, sum.directions.word(1));
  EXPECT_TRUE(sum.common.resend);
  EXPECT_EQ(1U, at().slots_in_use()) << "until its result comes";
  EXPECT_EQ(1U, counters().completed);
  EXPECT_EQ(2U, counters().resends_merged);
  receive_rack({3}, 3, true);  // the sum was lost
  EXPECT_EQ((Values{7}), one().values);
}

TEST_F(AtpSecondLevelTest, ByThePapersRulesAnyResendLosesTheSum) {  // Fig. 17, 3
  place_->at.remove_job(epoch);
  ASSERT_TRUE(at().add_job(second_level(Rules::paper)));
  receive(gradient_bytes_of(of(2, 0), own(), {4}), port(12));
  receive_rack({3}, 3, true);
  const AnyPacket passed = one();
  EXPECT_EQ((Values{3}), passed.values);
  EXPECT_EQ(1U, passed.directions.word(1));
  EXPECT_EQ(0U, at().slots_in_use());
}

TEST_F(AtpSecondLevelTest, ItsSecondResendSendsUpWhatIsThere) {
  receive_rack({3});
  receive_rack({3}, 3, true);
  receive_rack({3}, 3, true);
  const AnyPacket partial = one();
  EXPECT_EQ((Values{3}), partial.values);
  EXPECT_EQ((Directions{2, {2, 2, 1, 0}, {3, 1, 1, 0}}), partial.directions);
  EXPECT_EQ(0U, at().slots_in_use());
  receive(gradient_bytes_of(of(2, 0), own(), {4}), port(12));
  EXPECT_EQ((Values{4}), one().values) << "it goes after the rest";
}

TEST_F(AtpSecondLevelTest, ASwitchThatRepeatsItselfIsNotTold) {
  receive_rack({3});
  receive_rack({3});
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, counters().repeats_silent);
  const Bytes packet = gradient_bytes_of(of(2, 1), own(), {4});
  receive(packet, port(12));
  receive(packet, port(12));
  EXPECT_EQ(ranks_of({0, 1}), one().missing);  // those below the switch
}

TEST_F(AtpSecondLevelTest, WideSumsAreAddedInAnyOrder) {
  receive_rack({INT32_MIN, 1}, 3, false, {1, 2});  // 2^31 above INT32_MIN: one time 2^32
  receive(gradient_bytes_of(of(2, 0), own(), {-1, 1}), port(12));
  AnyPacket sum = one();
  EXPECT_EQ((Values{INT32_MAX, 2}), sum.values);
  EXPECT_EQ((std::vector<std::int16_t>{0, 2}), sum.high);
  receive(parameter_bytes_of(answer(Type::parameter, 0)), parent);
  static_cast<void>(take_packets(sink_));
  receive(gradient_bytes_of(of(2, 0), own(), {-1, 1}), port(12));  // narrow first
  receive_rack({INT32_MIN, 1}, 3, false, {1, 2});
  sum = one();
  EXPECT_EQ((Values{INT32_MAX, 2}), sum.values);
  EXPECT_EQ((std::vector<std::int16_t>{0, 2}), sum.high);
}

TEST_F(AtpSecondLevelTest, DoneGoesToSwitchesAlone) {
  receive(parameter_bytes_of(answer(Type::done, 0)), parent);
  EXPECT_EQ(port(20), one().to);
  receive(parameter_bytes_of(answer(Type::ask, 0)), parent);
  EXPECT_EQ(2U, take_packets(sink_).size());
}

TEST_F(AtpSecondLevelTest, NeighboursMoveAndNothingIsAddedTwice) {
  receive_rack({3});  // from the switch that will have moved
  SwitchJobConfig moved = second_level();
  moved.parent = port(98);
  moved.children[0].endpoint = port(21);
  ASSERT_TRUE(at().move_job(moved));
  receive_rack({3});
  EXPECT_EQ(1U, counters().dropped_source) << "the old place";
  receive(gradient_bytes_of(
              [] {
                Common c = of(0, 0);
                c.rank_epoch = folded;
                return c;
              }(),
              rack(3), {3}),
          port(21));
  EXPECT_EQ(1U, counters().repeats_silent) << "its values are in the sum";
  receive(gradient_bytes_of(of(2, 0), own(), {4}), port(12));
  const AnyPacket sum = one();
  EXPECT_EQ((Values{7}), sum.values);
  EXPECT_EQ(port(98), sum.to);
  receive(parameter_bytes_of(answer(Type::parameter, 0)), parent);
  EXPECT_EQ(1U, at().slots_in_use()) << "the old parent";
  receive(parameter_bytes_of(answer(Type::parameter, 0)), port(98));
  EXPECT_EQ(0U, at().slots_in_use());
  const auto down = take_packets(sink_);
  ASSERT_EQ(2U, down.size());
  EXPECT_EQ(port(21), down[0].to);
  EXPECT_EQ(port(12), down[1].to);
}

TEST_F(AtpSecondLevelTest, AChildWithoutAPlaceGetsNothing) {
  SwitchJobConfig moved = second_level();
  moved.children[0].endpoint = Endpoint{};
  ASSERT_TRUE(at().move_job(moved));
  receive(parameter_bytes_of(answer(Type::parameter, 0)), parent);
  EXPECT_EQ(port(12), one().to);
}

TEST_F(AtpSecondLevelTest, AnotherJobUnderTheSameEpochIsRefused) {
  for (const auto& change : std::vector<void (*)(SwitchJobConfig&)>{
           [](SwitchJobConfig& c) { c.epoch = 1; }, [](SwitchJobConfig& c) { c.folded_epochs = 1; },
           [](SwitchJobConfig& c) { c.packet_elements = 1; }, [](SwitchJobConfig& c) { c.window = 1; },
           [](SwitchJobConfig& c) { c.level = 0; }, [](SwitchJobConfig& c) { c.next_level = 3; },
           [](SwitchJobConfig& c) { c.overflow = Overflow::saturating; }, [](SwitchJobConfig& c) { c.children.pop_back(); },
           [](SwitchJobConfig& c) { c.children[0].is_switch = false; },
           [](SwitchJobConfig& c) { c.children[1].rank_epoch = 1; },
           [](SwitchJobConfig& c) { c.children[0].ranks = ranks_of({0}); }}) {
    SwitchJobConfig other = second_level();
    change(other);
    EXPECT_FALSE(at().move_job(other));
  }
  EXPECT_TRUE(at().move_job(second_level()));
}

// ---- who is believed

TEST_F(AtpSwitchTest, ForeignAndForgedPacketsAreCountedAndDropped) {
  const auto packet = [&](auto change, Directions directions = path(0)) {
    Common c = of(0, 0);
    change(c);
    return gradient_bytes_of(c, directions, {1});
  };
  const auto nothing = [](Common&) {};
  receive(packet(nothing), port(11));  // another rank's address
  receive(packet(nothing), parent);
  EXPECT_EQ(2U, counters().dropped_source);
  std::map<std::string, Endpoint> sources;
  at().drop_sources(epoch)->add_to(sources);
  EXPECT_EQ((std::map<std::string, Endpoint>{{"dropped_source", parent}}), sources) << "the newest";
  receive(packet([](Common& c) { c.rank_epoch = folded; }), port(10));  // of a sum
  receive(packet([](Common& c) { c.rank_epoch = 101; }), port(10));
  EXPECT_EQ(2U, counters().dropped_rank_epoch);
  receive(packet(nothing, {1, {2, 1, 0, 0}, {1, 1, 0, 0}}), port(10));  // on its way to another level
  receive(packet(nothing, {0, {2, 1, 0, 0}, {3, 1, 0, 0}}), port(10));  // of two children
  receive(packet(nothing, {0, {2, 1, 0, 0}, {0, 1, 0, 0}}), port(10));  // of none
  receive(packet(nothing, {0, {3, 1, 0, 0}, {1, 1, 0, 0}}), port(10));  // of another number of children
  receive(packet([](Common& c) { c.floats = true; }), port(10));        // malformed
  EXPECT_EQ(5U, counters().dropped_shape);
  receive(gradient_bytes_of(of(0, 0), path(0), Values(longest + 1)), port(10));
  EXPECT_EQ(6U, counters().dropped_shape);
  Bytes damaged = packet(nothing);
  damaged.back() ^= std::byte{1};
  receive(damaged, port(10));
  EXPECT_EQ(1U, at().counters().malformed[static_cast<std::size_t>(wire::ParseError::checksum)]);
  EXPECT_EQ(0U, at().slots_in_use());
  EXPECT_TRUE(silent());
  EXPECT_EQ(10U, counters().packets);
}

TEST_F(AtpSwitchTest, OnlyTheParentAnswers) {
  receive(0, of(0, 0));
  const auto answered = [&](auto change, const Endpoint& source, std::size_t longer = 0) {
    Common c = answer(Type::parameter, 0);
    change(c);
    Bytes packet = parameter_bytes_of(c);
    packet.resize(packet.size() + longer);
    wire::atp::seal(packet);
    receive(packet, source);
    EXPECT_TRUE(silent());
    EXPECT_EQ(1U, at().slots_in_use());
  };
  const auto nothing = [](Common&) {};
  answered(nothing, port(10));
  EXPECT_EQ(1U, counters().dropped_source);
  answered([](Common& c) { c.rank_epoch = 100; }, parent);
  EXPECT_EQ(1U, counters().dropped_rank_epoch);
  answered(nothing, parent, 4);
  EXPECT_EQ(1U, counters().dropped_shape);
  Bytes waiting(wire::atp::waiting_bytes({}));  // goes from the server to a rank by itself
  wire::atp::write_waiting(waiting, {answer(Type::waiting, 0), {}});
  receive(waiting, parent);
  EXPECT_EQ(1U, at().counters().unexpected_type);
}

TEST_F(AtpSwitchTest, JobsShareSlotsAndDoNotSeeEachOther) {
  SwitchJobConfig other = job(epoch + 1);
  ASSERT_TRUE(at().add_job(other));
  receive(0, of(0, 0), {1});
  receive_changed(1, of(1, 0), [](Common& c) { c.job_epoch = epoch + 1; }, {100});
  EXPECT_TRUE(one().common.collision);
  Common result = answer(Type::parameter, 0);
  result.job_epoch = epoch + 1;
  receive(parameter_bytes_of(result), parent);  // the same sequence number of another job
  static_cast<void>(take_packets(sink_));
  EXPECT_EQ(1U, at().slots_in_use(epoch));
  EXPECT_EQ(0U, at().slots_in_use(epoch + 1));
  receive(1, of(1, 0), {2});
  EXPECT_EQ((Values{3}), one().values);
}

TEST_F(AtpSwitchTest, AJobThatEndsLeavesNoSlots) {
  ASSERT_TRUE(at().add_job(job(epoch + 1)));
  receive(0, of(0, 0));
  receive(0, of(0, 1));
  receive_changed(0, of(0, 2), [](Common& c) { c.job_epoch = epoch + 1; });
  at().remove_job(epoch);
  EXPECT_EQ(nullptr, at().job_counters(epoch));
  EXPECT_EQ(1U, at().slots_in_use());
  EXPECT_EQ(1U, at().slots_in_use(epoch + 1));
  receive(0, of(0, 0));
  EXPECT_EQ(Type::unknown_job, one().common.type);
}

// The windows of the ranks below it.
TEST_F(AtpSwitchTest, ItsQueueIsLongFromWhatItsJobsRanksMaySendAtFirst) {
  EXPECT_EQ(2 * 4 * 60'000U, at().long_queue());
  SwitchJobConfig c = job(epoch + 1);
  c.children.push_back({port(12), true, 0, ranks_of({2, 3, 4})});
  ASSERT_TRUE(at().add_job(c));
  EXPECT_FALSE(at().add_job(c));
  EXPECT_EQ(7 * 4 * 60'000U, at().long_queue());
  at().remove_job(epoch);
  EXPECT_EQ(5 * 4 * 60'000U, at().long_queue());
  at().remove_job(epoch);
  at().remove_job(epoch + 1);
  EXPECT_EQ(0U, at().long_queue());
  EXPECT_EQ(8 * 64 * 43'520U, long_queue_bytes(8, 10'880, 16));  // long packets
  EXPECT_EQ(8 * 1024 * 1024U, long_queue_bytes(8, 256, 1024));   // long windows
}

TEST_F(AtpSwitchTest, AJobNeedsAnEpochOfItsOwnAndChunksThatFit) {
  EXPECT_FALSE(at().add_job(job()));
  SwitchJobConfig c = job(epoch + 1);
  c.packet_elements = longest + 1;
  EXPECT_FALSE(at().add_job(c));
  c.packet_elements = 1;
  EXPECT_TRUE(at().add_job(c));
  receive_changed(0, of(0, 0), [](Common& common) { common.job_epoch = epoch + 1; }, {1, 2});
  EXPECT_EQ(1U, at().job_counters(epoch + 1)->dropped_shape);
}

TEST_F(AtpSwitchTest, AnUnknownJobIsAnsweredAtALimitedRate) {
  const auto packet = [&] {
    Common c = of(0, 0);
    c.job_epoch = 1234;
    return gradient_bytes_of(c, path(0), {1});
  }();
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
  EXPECT_EQ(2001U, at().counters().unknown_job);
  EXPECT_EQ(128U, at().counters().unknown_job_replies);
  now_ += 10ms;
  Common result = answer(Type::parameter, 0);
  result.job_epoch = 1234;
  receive(parameter_bytes_of(result), parent);  // what comes down is not answered
  EXPECT_TRUE(silent());
  EXPECT_EQ(2002U, at().counters().unknown_job);
}

// ---- state is a value

TEST_F(AtpSwitchTest, ACopyHasTheSameStateAndGoesItsOwnWay) {
  const auto state = [](const Switch& s) {
    Bytes bytes;
    s.append_state(bytes);
    return bytes;
  };
  receive(0, of(0, 0), {INT32_MAX});
  receive(0, of(0, 1), {INT32_MAX});
  receive(1, of(1, 1), {INT32_MAX});  // wide
  static_cast<void>(take_packets(sink_));
  Place other;
  Switch copy(at());
  copy.move_memory(std::as_writable_bytes(std::span(other.memory)));
  EXPECT_EQ(state(at()), state(copy));
  receive(1, of(1, 0), {2});
  EXPECT_NE(state(at()), state(copy));
  static_cast<void>(take_packets(sink_));
  const Bytes packet = gradient_bytes_of(of(1, 0), path(1), {-1});
  const RxView view{packet, port(11)};
  copy.on_packets({&view, 1}, false, now_, sink_);
  EXPECT_EQ((Values{INT32_MAX - 1}), one().values);
  const Bytes before = state(copy);
  at() = copy;
  EXPECT_EQ(before, state(at()));
  at() = std::move(copy);
  EXPECT_EQ(before, state(at()));
  EXPECT_EQ(2U, at().slots_in_use());
}

TEST(AtpSwitchMemory, AllThatAPoolTakesIsCharged) {
  SwitchConfig large = config();
  large.slots = 1000;
  std::vector<CacheLine> memory(Switch::memory_bytes(large) / sizeof(CacheLine));
  const std::size_t before = mallinfo2().uordblks;
  const Switch pool(large, std::as_writable_bytes(std::span(memory)));
  const std::size_t taken = mallinfo2().uordblks - before;
  EXPECT_LE(taken, Switch::total_bytes(large) - Switch::memory_bytes(large) + 1024);
}

}  // namespace
}  // namespace netsum::atp
