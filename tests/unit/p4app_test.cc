// p4lang/p4app-switchML's packets, switch and worker, by packets that are written here by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/bytes.h"
#include "protocol/p4app/switch.h"
#include "protocol/p4app/worker.h"
#include "support/recording_sink.h"
#include "support/virtual_p4app.h"
#include "wire/p4app.h"

namespace netsum {
namespace {

using testing::Datagram;
using testing::endpoint_of;
using testing::RecordingSink;
using testing::VirtualP4app;

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::initializer_list<int> values, std::size_t size) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  bytes.resize(size);
  return bytes;
}

constexpr std::size_t small_packet = 10 + 64 * 4, large_packet = 10 + 256 * 4;

TEST(P4appWire, ReadsAndWritesAPacketByteByByte) {
  // Type 1 and size 1 (256 bytes); job 7; packet 0x01020304, little-endian; set 1 and slot 0x0123; exponents -3 and 5; 2.
  const Bytes bytes =
      bytes_of({0x11, 0x07, 0x04, 0x03, 0x02, 0x01, 0x81, 0x23, 0xfd, 0x05, 0x00, 0x00, 0x00, 0x02}, small_packet);
  wire::p4app::Packet packet;
  ASSERT_EQ(wire::p4app::parse(bytes, packet), wire::ParseError::none);
  EXPECT_EQ(packet.header.elements, 64u);
  EXPECT_EQ(packet.header.job, 7);
  EXPECT_EQ(packet.header.packet, 0x01020304u);
  EXPECT_EQ(packet.header.slot, 0x0123);
  EXPECT_TRUE(packet.header.set);
  EXPECT_EQ(packet.header.exponents, (std::array<std::int8_t, 2>{-3, 5}));
  EXPECT_EQ(load_be<std::uint32_t>(packet.payload.data()), 2u);
  Bytes again(small_packet);
  std::copy(packet.payload.begin(), packet.payload.end(), again.begin() + 10);
  wire::p4app::write_header(again, packet.header);
  EXPECT_EQ(again, bytes);
}

TEST(P4appWire, RefusesWhatTheirSwitchSumsNot) {
  const auto parse = [](std::initializer_list<int> values, std::size_t size) {
    wire::p4app::Packet packet;
    return wire::p4app::parse(bytes_of(values, size), packet);
  };
  EXPECT_EQ(parse({0x13}, large_packet), wire::ParseError::none);
  EXPECT_EQ(parse({0x13}, 9), wire::ParseError::truncated);
  EXPECT_EQ(parse({0x23}, large_packet), wire::ParseError::type);
  EXPECT_EQ(parse({0x10}, 10 + 128), wire::ParseError::field);
  EXPECT_EQ(parse({0x12}, 10 + 512), wire::ParseError::field);
  EXPECT_EQ(parse({0x13}, small_packet), wire::ParseError::length);
  EXPECT_EQ(parse({0x13}, large_packet + 1), wire::ParseError::length);
  // The two bits that nobody reads.
  EXPECT_EQ(parse({0x1b, 0, 0, 0, 0, 0, 0x40, 0}, large_packet), wire::ParseError::none);
}

// A worker's packet of 64 times `value`.
struct Sent {
  std::uint16_t slot;
  bool set;
  std::uint32_t packet;
  std::int32_t value;
  std::int8_t exponent = 0;
  std::uint8_t job = 1;
};

class P4appSwitch : public ::testing::Test {
 protected:
  void begin(std::uint32_t workers) {
    aggregator_.begin(workers, 64);
    for (std::uint32_t rank = 0; rank < workers; ++rank)
      aggregator_.set_worker(rank, endpoint_of(static_cast<std::uint8_t>(rank), 0));
  }

  // What the switch sends then.
  std::vector<Datagram> send(std::uint8_t rank, const Sent& sent, std::uint16_t port = 4000) {
    Bytes bytes(small_packet);
    wire::p4app::write_header(bytes, {64, sent.job, sent.packet, sent.slot, sent.set, {sent.exponent, 0}});
    for (std::size_t i = 0; i < 64; ++i) store_be(bytes.data() + 10 + i * 4, static_cast<std::uint32_t>(sent.value));
    return deliver(bytes, endpoint_of(rank, port));
  }
  std::vector<Datagram> deliver(const Bytes& bytes, const Endpoint& from) {
    std::vector<Datagram> out;
    RecordingSink sink(endpoint_of(255, 48864), out);
    const RxView view{bytes, from};
    aggregator_.on_packets({&view, 1}, {}, sink);
    sink.flush();
    return out;
  }
  static std::int32_t value_of(const Datagram& datagram) {
    return static_cast<std::int32_t>(load_be<std::uint32_t>(datagram.bytes.data() + small_packet - 4));
  }

  p4app::Switch aggregator_;
};

TEST_F(P4appSwitch, AnswersTheLastContributionToAllWorkers) {
  begin(2);
  EXPECT_TRUE(send(0, {3, false, 9, 40, -2}).empty());
  const auto results = send(1, {3, false, 9, 2, 4}, 4001);
  ASSERT_EQ(results.size(), 2u);
  for (std::uint8_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(results[rank].to, endpoint_of(rank, 4001));  // the port of the packet that was last
    EXPECT_EQ(value_of(results[rank]), 42);
    const Bytes header(results[rank].bytes.begin(), results[rank].bytes.begin() + 10);
    EXPECT_EQ(header, bytes_of({0x11, 1, 9, 0, 0, 0, 0, 3, 4, 0}, 10));
  }
}

TEST_F(P4appSwitch, SumsWrapAndHaveTheLargestExponents) {
  begin(2);
  EXPECT_TRUE(send(0, {0, true, 0, INT32_MAX, -128}).empty());
  const auto results = send(1, {0, true, 0, 1, -127});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(value_of(results[0]), INT32_MIN);
  EXPECT_EQ(std::to_integer<std::uint8_t>(results[0].bytes[6]), 0x80);
  EXPECT_EQ(std::to_integer<std::int8_t>(results[0].bytes[8]), -127);
}

TEST_F(P4appSwitch, AnswersARepeatOnceItsRoundIsComplete) {
  begin(2);
  EXPECT_TRUE(send(0, {0, false, 0, 5}).empty());
  EXPECT_TRUE(send(0, {0, false, 0, 5}).empty());
  EXPECT_EQ(send(1, {0, false, 0, 6}).size(), 2u);
  const auto again = send(0, {0, false, 0, 5}, 4002);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].to, endpoint_of(0, 4002));
  EXPECT_EQ(value_of(again[0]), 11);
  EXPECT_EQ(aggregator_.counters().repeats_ignored, 1u);
  EXPECT_EQ(aggregator_.counters().repeats_answered, 1u);
  EXPECT_EQ(aggregator_.counters().added, 2u);
}

TEST_F(P4appSwitch, SetsAlternateForEver) {
  begin(2);
  for (std::uint32_t round = 0; round < 6; ++round) {
    const bool set = round % 2 != 0;
    EXPECT_TRUE(send(1, {0, set, round, 1}).empty());
    const auto results = send(0, {0, set, round, static_cast<std::int32_t>(round)});
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(value_of(results[1]), static_cast<std::int32_t>(round) + 1);
  }
  EXPECT_EQ(aggregator_.counters().added_to_another, 0u);
}

TEST_F(P4appSwitch, OneWorkerIsAnsweredAtOnce) {
  begin(1);
  EXPECT_EQ(send(0, {0, false, 0, 5}).size(), 1u);
  EXPECT_EQ(send(0, {0, false, 0, 5}).size(), 1u);
  EXPECT_EQ(send(0, {0, true, 1, 6}).size(), 1u);
  EXPECT_EQ(aggregator_.counters().repeats_answered, 1u);
}

// docs/protocol-switchml.md: with one slot and two workers, late copies of w0c0 and w0c1 make w0 receive twice its own
// chunk.
TEST_F(P4appSwitch, CountsALateCopyAgainAsPublished) {
  begin(2);
  send(0, {0, false, 0, 10});
  EXPECT_EQ(send(1, {0, false, 0, 1}).size(), 2u);
  send(0, {0, true, 1, 20});                        // w0 has the result of c0; its bit in the other set is cleared
  EXPECT_TRUE(send(0, {0, false, 0, 10}).empty());  // a late copy of c0 is added to c0's old sum
  EXPECT_EQ(aggregator_.counters().added, 4u);
  const auto wrong = send(0, {0, true, 1, 20});  // and one of c1, whose bit that one has cleared, completes c1 without w1
  ASSERT_EQ(wrong.size(), 2u);
  EXPECT_EQ(value_of(wrong[0]), 20);
  EXPECT_EQ(aggregator_.counters().added_twice, 2u);
}

TEST_F(P4appSwitch, CountsWhatAnotherPacketsNumberShows) {
  begin(2);
  send(0, {0, false, 0, 10});
  send(1, {0, false, 4, 1});
  EXPECT_EQ(aggregator_.counters().added_to_another, 1u);
  const auto answer = send(1, {0, false, 4, 1});
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(aggregator_.counters().answered_by_another, 1u);
  EXPECT_EQ(std::to_integer<int>(answer[0].bytes[2]), 4);  // named as asked for
}

TEST_F(P4appSwitch, DropsAndCountsWhatIsOfNoWorkerSizeOrSlot) {
  EXPECT_TRUE(send(0, {0, false, 0, 1}).empty());  // no session
  begin(1);
  EXPECT_TRUE(send(7, {0, false, 0, 1}).empty());
  EXPECT_TRUE(send(0, {8192, false, 0, 1}).empty());
  EXPECT_EQ(send(0, {8191, false, 0, 1}).size(), 1u);
  EXPECT_TRUE(deliver(bytes_of({0x13}, large_packet), endpoint_of(0, 4000)).empty());
  EXPECT_TRUE(deliver(bytes_of({0x11}, 5), endpoint_of(0, 4000)).empty());
  const p4app::SwitchCounters& counters = aggregator_.counters();
  EXPECT_EQ(counters.dropped_strangers, 2u);
  EXPECT_EQ(counters.dropped_slots, 1u);
  EXPECT_EQ(counters.dropped_sizes, 1u);
  EXPECT_EQ(counters.malformed[static_cast<std::size_t>(wire::ParseError::truncated)], 1u);
  EXPECT_EQ(counters.packets, outcomes(counters));
}

TEST_F(P4appSwitch, ANewSessionForgetsTheFormer) {
  begin(2);
  send(0, {0, false, 0, 10});
  begin(2);
  EXPECT_TRUE(send(1, {0, false, 0, 1}).empty());
  const auto results = send(0, {0, false, 0, 2});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(value_of(results[0]), 3);
}

// A worker of two, and what it has sent.
class P4appWorker : public ::testing::Test {
 protected:
  void answer(const Datagram& sent, std::int8_t exponent, std::int32_t value) {
    Bytes bytes = sent.bytes;
    bytes[8] = static_cast<std::byte>(exponent);
    for (std::size_t at = 10; at < bytes.size(); at += 4) store_be(bytes.data() + at, static_cast<std::uint32_t>(value));
    const RxView view{bytes, config_.aggregator};
    RecordingSink sink(endpoint_of(0, 4000), sent_);
    worker_.on_packets({&view, 1}, now_, sink);
    sink.flush();
  }
  template <class Element>
  void begin(DType dtype, std::vector<Element>& tensor) {
    RecordingSink sink(endpoint_of(0, 4000), sent_);
    worker_.begin(dtype, std::as_writable_bytes(std::span(tensor)), now_, sink);
    sink.flush();
  }
  static int byte_of(const Datagram& sent, std::size_t at) { return std::to_integer<int>(sent.bytes[at]); }

  p4app::WorkerConfig config_{2, 64, 2, 4, endpoint_of(255, 48864)};
  p4app::Worker worker_{config_};
  Time now_{};
  std::vector<Datagram> sent_;
};

TEST_F(P4appWorker, SendsIntegersAsTheyAreAndAlternatesSetsAcrossTensors) {
  std::vector<std::int32_t> tensor(64 * 3, 7);
  begin(DType::int32, tensor);
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(Bytes(sent_[1].bytes.begin(), sent_[1].bytes.begin() + 14),
            bytes_of({0x11, 0, 1, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 7}, 14));
  answer(sent_[0], 0, 21);
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(byte_of(sent_[2], 2), 2);     // packet 2 follows packet 0
  EXPECT_EQ(byte_of(sent_[2], 6), 0x80);  // in its slot's other set
  EXPECT_EQ(byte_of(sent_[2], 7), 4);
  answer(sent_[1], 0, 22);
  answer(sent_[2], 0, 23);
  EXPECT_FALSE(worker_.busy());
  EXPECT_EQ(tensor[0], 21);
  EXPECT_EQ(tensor[64], 22);
  EXPECT_EQ(tensor[128], 23);
  std::vector<std::int32_t> next(1, 3);
  begin(DType::int32, next);
  ASSERT_EQ(sent_.size(), 4u);
  EXPECT_EQ(byte_of(sent_[3], 1), 1);     // job 1
  EXPECT_EQ(byte_of(sent_[3], 2), 0);     // its packet 0
  EXPECT_EQ(byte_of(sent_[3], 6), 0x80);  // goes on where the former tensor ended
  EXPECT_EQ(byte_of(sent_[3], 7), 5);
}

TEST_F(P4appWorker, SendsExponentsAheadOfFloats) {
  std::vector<float> tensor(64, 1.0F);
  tensor[5] = -3.0F;
  begin(DType::float32, tensor);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(byte_of(sent_[0], 8), 2);  // below 2^2
  answer(sent_[0], 3, 0);              // the other worker has more
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(byte_of(sent_[1], 2), 1);
  const auto integer = static_cast<std::int32_t>(load_be<std::uint32_t>(sent_[1].bytes.data() + 10));
  EXPECT_EQ(integer, 1 << 27);  // 2^31 / (2 workers * 2^3)
  answer(sent_[1], 0, 3 << 27);
  EXPECT_FALSE(worker_.busy());
  EXPECT_EQ(tensor[0], 3.0F);
}

TEST_F(P4appWorker, RepeatsWhatHasNoResultAndBelievesNothingElse) {
  std::vector<std::int32_t> tensor(64 * 2, 7);
  begin(DType::int32, tensor);
  now_ = worker_.next_timeout();
  EXPECT_EQ(now_, Time{} + config_.time_out);
  answer(sent_[0], 0, 1);
  answer(sent_[0], 0, 2);  // a second copy
  Datagram wrong = sent_[1];
  wrong.bytes[1] = std::byte{9};  // of another job
  answer(wrong, 0, 3);
  wrong = sent_[1];
  wrong.bytes[7] = std::byte{4};  // another slot
  answer(wrong, 0, 3);
  EXPECT_EQ(worker_.counters().dropped_unexpected, 3u);
  RecordingSink sink(endpoint_of(0, 4000), sent_);
  worker_.on_timer(now_, sink);
  sink.flush();
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[2].bytes, sent_[1].bytes);
  EXPECT_EQ(worker_.next_timeout(), now_ + 2 * config_.time_out);
  answer(sent_[2], 0, 4);
  EXPECT_FALSE(worker_.busy());
  EXPECT_EQ(tensor[0], 1);
  EXPECT_EQ(tensor[64], 4);
  EXPECT_EQ(worker_.counters().packets, outcomes(worker_.counters()));
}

// Of several lengths, one after the other, with packets lost, and none so late that another round has begun.
TEST(P4appCluster, SumsTensorsInSpiteOfLosses) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    testing::P4appConfig config;
    config.workers = 3;
    config.seed = seed;
    config.faults.loss = 0.05;
    VirtualP4app job(config);
    for (const std::size_t elements :
         {1U, 64U, 192U, 1000U, 65U}) {  // 192: fewer packets than the window, and twice as many are more
      std::vector<std::vector<std::int32_t>> integers;
      std::vector<std::vector<float>> floats;
      for (std::uint32_t rank = 0; rank < config.workers; ++rank) {
        integers.emplace_back(elements, static_cast<std::int32_t>(1 << rank));
        floats.emplace_back(elements, std::ldexp(1.0F, static_cast<int>(rank)));
      }
      ASSERT_TRUE(job.all_reduce(integers, DType::int32));
      ASSERT_TRUE(job.all_reduce(floats, DType::float32));
      for (std::uint32_t rank = 0; rank < config.workers; ++rank) {
        EXPECT_EQ(integers[rank], std::vector<std::int32_t>(elements, 7)) << seed;
        for (const float value : floats[rank]) ASSERT_NEAR(value, 7.0F, 1e-5F) << seed;
      }
    }
    EXPECT_EQ(job.aggregator().counters().added_to_another, 0u);
    EXPECT_EQ(job.aggregator().counters().answered_by_another, 0u);
  }
}

}  // namespace
}  // namespace netsum
