// A chip's switch with hand-made packets: what fits in registers, and what passes on because it does not.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "protocol/atp/switch.h"
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
constexpr std::uint32_t folded = 0xabcd, signature = 5, slots = 4, length = 4, window = 8;
const Endpoint parent = port(99);

SwitchConfig config() {
  return {.slots = slots, .packet_elements = length, .abandoned_after = 1s, .chip = true};
}

SwitchJobConfig job(std::uint64_t job_epoch = epoch, std::uint8_t level = 0) {
  SwitchJobConfig c;
  c.epoch = job_epoch;
  c.folded_epochs = folded;
  c.packet_elements = length;
  c.window = window;
  c.level = level;
  c.next_level = static_cast<std::uint8_t>(level + 1);
  c.parent = parent;
  c.rules = Rules::chip;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    c.children.push_back(
        {port(static_cast<std::uint16_t>(10 + rank)), level > 0, level > 0 ? 0 : 100 + rank, ranks_of({rank})});
  }
  return c;
}

Common of(std::uint32_t rank, std::uint64_t sequence) {
  Common c;
  c.type = Type::gradient;
  c.unchecked = true;
  c.job_epoch = epoch;
  c.sequence = sequence;
  c.rank_epoch = 100 + rank;
  c.signature = signature;
  c.index = static_cast<std::uint32_t>(sequence % slots);
  return c;
}
Common resend_of(std::uint32_t rank, std::uint64_t sequence) {
  Common c = of(rank, sequence);
  c.resend = true;
  return c;
}

class AtpChipSwitchTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(at_.add_job(job())); }

  void receive(const Bytes& packet, const Endpoint& source) {
    const RxView view{packet, source, false};
    at_.on_packets({&view, 1}, false, now_, sink_);
  }
  void receive(std::uint32_t rank, const Common& common, const Values& values = {1, 2, 3, 4}, std::uint8_t level = 0) {
    const Directions path =
        level == 0 ? Directions{0, {2, 1, 0, 0}, {1U << rank, 1, 0, 0}} : Directions{1, {2, 2, 1, 0}, {3, 1U << rank, 1, 0}};
    receive(gradient_bytes_of(common, path, values, {}), port(static_cast<std::uint16_t>(10 + rank)));
  }
  void result_passes(std::uint64_t sequence) {
    Common c = of(0, sequence);
    c.type = Type::parameter;
    c.rank_epoch = folded;
    receive(parameter_bytes_of(c), parent);
    static_cast<void>(sink_.take());
  }
  AnyPacket one() {
    const auto packets = take_packets(sink_);
    EXPECT_EQ(1U, packets.size());
    return packets.empty() ? AnyPacket{} : packets.front();
  }
  bool silent() { return take_packets(sink_).empty(); }
  const SwitchJobCounters& counters() { return *at_.job_counters(epoch); }

  std::vector<CacheLine> memory_ = std::vector<CacheLine>(Switch::memory_bytes(config()) / sizeof(CacheLine));
  Switch at_{config(), std::as_writable_bytes(std::span(memory_))};
  RecordingSink sink_;
  Time now_{std::chrono::seconds(10)};
};

TEST_F(AtpChipSwitchTest, TheLastPacketLeavesAsTheSum) {
  Common first = of(0, 0);
  first.overflow = true;
  first.exponent = 9;
  receive(0, first, {1, 2, 3, INT32_MAX});
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, at_.slots_in_use());
  receive(1, of(1, 0), {10, 20, 30, 1});
  const AnyPacket sum = one();
  EXPECT_EQ(parent, sum.to);
  EXPECT_EQ((Values{11, 22, 33, INT32_MIN}), sum.values) << "it wraps: ranks whose sum may not fit say so";
  EXPECT_EQ((Directions{1, {2, 1, 0, 0}, {3, 1, 0, 0}}), sum.directions);
  EXPECT_EQ(folded, sum.common.rank_epoch);
  EXPECT_EQ(9, sum.common.exponent);
  EXPECT_TRUE(sum.common.overflow && sum.common.unchecked);
  EXPECT_FALSE(sum.common.resend || sum.common.wide);
  EXPECT_EQ(2U, counters().added);
  EXPECT_EQ(1U, counters().completed);
  result_passes(0);
  EXPECT_EQ(0U, at_.slots_in_use());
  receive(0, of(0, 4));
  receive(1, of(1, 4));
  EXPECT_FALSE(one().common.overflow) << "of the chunk that was here before";
}

TEST_F(AtpChipSwitchTest, ARepeatIsDroppedAndNobodyIsTold) {
  receive(0, of(0, 0));
  receive(0, of(0, 0));
  receive(0, of(0, 3));
  receive(0, of(0, 6));  // three past what the other rank has not sent
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, counters().repeats_silent);
}

TEST_F(AtpChipSwitchTest, TheFirstResendTakesTheSumWithIt) {
  receive(0, of(0, 0), {1, 2, 3, 4});
  receive(1, resend_of(1, 0), {10, 20, 30, 40});
  AnyPacket sum = one();
  EXPECT_EQ((Values{11, 22, 33, 44}), sum.values);
  EXPECT_TRUE(sum.common.resend);
  EXPECT_EQ(0U, at_.slots_in_use());
  receive(0, resend_of(0, 0), {1, 2, 3, 4});
  sum = one();
  EXPECT_EQ((Values{1, 2, 3, 4}), sum.values) << "the next one passes on";
  EXPECT_EQ(100U, sum.common.rank_epoch);
  EXPECT_EQ(1U, counters().resends_merged);
  EXPECT_EQ(1U, counters().resends_passed);
  receive(0, of(0, 1), {1, 1, 1, 1});
  receive(0, resend_of(0, 1), {1, 1, 1, 1});
  EXPECT_EQ((Values{1, 1, 1, 1}), one().values) << "which was in it";
}

TEST_F(AtpChipSwitchTest, WhatAnotherChunkHasIsNotTaken) {
  receive(0, of(0, 0));
  receive(1, of(1, 4), {5, 6, 7, 8});
  AnyPacket passed = one();
  EXPECT_TRUE(passed.common.resend && passed.common.collision);
  EXPECT_EQ((Values{5, 6, 7, 8}), passed.values);
  ASSERT_TRUE(at_.add_job(job(epoch + 1)));
  Common others = of(1, 0);  // the same sequence number, of another job
  others.job_epoch = epoch + 1;
  receive(1, others);
  EXPECT_TRUE(one().common.collision);
  Common other_call = of(1, 0);
  other_call.signature = signature + 1;
  receive(1, other_call);
  passed = one();
  EXPECT_TRUE(passed.common.resend);
  EXPECT_FALSE(passed.common.collision);
  EXPECT_EQ(1U, counters().mismatch_passed);
  receive(1, of(1, 0), {1, 1, 1, 1});
  EXPECT_EQ((Values{2, 3, 4, 5}), one().values);
}

TEST_F(AtpChipSwitchTest, AWindowLaterTheSlotIsFree) {
  receive(0, of(0, 0));
  receive(0, of(0, window));
  EXPECT_TRUE(silent());
  receive(1, of(1, 0));
  EXPECT_TRUE(one().common.collision) << "not for what comes too late";
}

TEST_F(AtpChipSwitchTest, SequenceNumbersDoNotComeAgain) {
  receive(0, of(0, 0));
  receive(1, of(1, std::uint64_t{1} << 32));
  EXPECT_TRUE(one().common.collision);
  receive(1, of(1, std::uint64_t{1} << 48));
  const AnyPacket passed = one();
  EXPECT_TRUE(passed.common.resend);
  EXPECT_FALSE(passed.common.collision);
}

TEST_F(AtpChipSwitchTest, TheControlPlaneFreesWhatIsThereForASecond) {
  receive(0, of(0, 0));
  now_ += 1s;
  receive(0, of(0, 1));
  EXPECT_EQ(2U, at_.slots_in_use());
  now_ += 1s;
  receive(0, of(0, 2));
  EXPECT_EQ(2U, at_.slots_in_use());  // 1 and 2
  EXPECT_EQ(1U, at_.counters().reclaimed);
}

TEST_F(AtpChipSwitchTest, WhatItCannotReadItDropsAndWhatItCannotAddPassesOn) {
  Common checked = of(0, 0);
  checked.unchecked = false;
  receive(0, checked);
  EXPECT_EQ(1U, counters().dropped_shape);
  receive(0, of(0, 0), {1, 2});
  EXPECT_TRUE(one().common.resend);
  Common unknown = of(0, 0);
  unknown.job_epoch = epoch + 9;
  receive(0, unknown);
  EXPECT_TRUE(silent()) << "it answers nobody";
  EXPECT_EQ(1U, at_.counters().unknown_job);
  EXPECT_EQ(0U, at_.slots_in_use());
}

TEST_F(AtpChipSwitchTest, AboveTheFirstLevelAResendFreesAndPassesOn) {
  at_.remove_job(epoch);
  ASSERT_TRUE(at_.add_job(job(epoch, 1)));
  receive(0, of(0, 0), {1, 2, 3, 4}, 1);
  receive(1, resend_of(1, 0), {5, 6, 7, 8}, 1);
  EXPECT_EQ((Values{5, 6, 7, 8}), one().values);
  EXPECT_EQ(0U, at_.slots_in_use());
}

TEST(AtpChipProfile, SaysWhatItRefuses) {
  SwitchJobConfig c = job();
  c.packet_elements = 64;
  EXPECT_EQ("", chip_refuses(c));
  c.rules = Rules::netsum;
  EXPECT_NE(std::string::npos, chip_refuses(c).find("--rules chip"));
  c.rules = Rules::chip;
  c.packet_elements = 100;
  EXPECT_NE(std::string::npos, chip_refuses(c).find("100"));
  c.packet_elements = 256;
  c.children.resize(33);
  EXPECT_NE(std::string::npos, chip_refuses(c).find("33"));
  c.children.resize(32);
  EXPECT_EQ("", chip_refuses(c));
}

TEST(AtpChipRule, ThirtyTwoChildrenAreAllBits) {
  EXPECT_EQ(UINT32_MAX, atp_chip_everyone(32));
  EXPECT_EQ(7U, atp_chip_everyone(3));
}

}  // namespace
}  // namespace netsum::atp
