// The worker at a chip with hand-made packets. Whole clusters are in tests/property.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "protocol/switchml/worker.h"
#include "protocol/switchml/worker_lane.h"
#include "support/recording_sink.h"

namespace netsum::switchml {
namespace {

using namespace std::chrono_literals;
using testing::RecordingSink;

constexpr std::uint64_t job_epoch = 77;
constexpr std::uint32_t elements = 64;

Endpoint endpoint(std::uint16_t port) {
  Endpoint e;
  e.port = port;
  return e;
}

WorkerConfig config_of(std::uint32_t slots = 2) {
  WorkerConfig c;
  c.job_epoch = job_epoch;
  c.rank = 1;
  c.world_size = 3;
  c.rank_epoch = 5;
  c.packet_elements = elements;
  c.slots = slots;
  c.aggregator = endpoint(1);
  c.chip = true;
  c.member = 2;
  return c;
}

class ChipWorkerTest : public ::testing::Test {
 protected:
  void start(const WorkerConfig& config) { worker = Worker(config); }

  template <class T>
  void submit(std::uint64_t number, DType dtype, std::vector<T>& tensor) {
    stream::Operation operation;
    operation.number = number;
    operation.dtype = dtype;
    operation.elements = tensor.size();
    operation.data = tensor.data();
    ASSERT_TRUE(worker.submit(operation, now, sink));
  }

  // The oldest datagram that was sent and not looked at.
  wire::chip::Packet take() {
    EXPECT_FALSE(sink.sent().empty());
    if (sink.sent().empty()) return {};
    kept.push_back(std::move(sink.sent().front().bytes));
    sink.sent().erase(sink.sent().begin());
    wire::chip::Packet packet;
    EXPECT_EQ(wire::ParseError::none, wire::chip::parse(kept.back(), packet));
    EXPECT_EQ(wire::chip::Type::contribution, packet.header.type);
    EXPECT_EQ(1, packet.header.rank);
    EXPECT_EQ(2, packet.header.member);
    EXPECT_EQ(job_epoch, packet.header.job_epoch);
    return packet;
  }
  static std::int32_t word(const wire::chip::Packet& packet, std::size_t i) {
    return static_cast<std::int32_t>(load_be<std::uint32_t>(packet.payload.data() + 4 * i));
  }

  // The result of a contribution: `value` everywhere, from the rank that was last.
  static std::vector<std::byte> result(wire::chip::Header header, std::int32_t value, std::uint16_t exponent,
                                       std::uint32_t of_elements = elements) {
    header.type = wire::chip::Type::result;
    header.exponents = {exponent, 0};
    std::vector<std::byte> packet(wire::chip::packet_bytes(of_elements));
    wire::chip::write_header(packet, header);
    for (std::uint32_t i = 0; i < of_elements; ++i)
      store_be(packet.data() + wire::chip::header_bytes + 4 * i, static_cast<std::uint32_t>(value));
    return packet;
  }
  void receive(const std::vector<std::byte>& packet, std::uint16_t from = 1) {
    const RxView view{packet, endpoint(from)};
    worker.on_packets({&view, 1}, now, sink);
  }

  Worker worker{config_of()};
  RecordingSink sink;
  std::vector<std::vector<std::byte>> kept;
  Time now{1s};
};

TEST_F(ChipWorkerTest, SendsIntegersInNetworkOrderAndZerosBehindTheTensor) {
  std::vector<std::int32_t> tensor(elements + 3);
  std::iota(tensor.begin(), tensor.end(), -1);
  submit(7, DType::int32, tensor);
  const auto first = take(), second = take();
  EXPECT_EQ(0, first.header.slot);
  EXPECT_EQ(1, second.header.slot);
  EXPECT_EQ(0, second.header.version);
  EXPECT_EQ(0U, second.header.round);
  EXPECT_EQ(wire::chip::unknown, second.header.exponents[0]);
  EXPECT_EQ(7U, second.header.echoed.operation);
  EXPECT_EQ(1U, second.header.echoed.chunk);
  EXPECT_EQ(-1, word(first, 0));
  EXPECT_EQ(65, word(second, 2));
  for (std::size_t i = 3; i < elements; ++i) EXPECT_EQ(0, word(second, i));
  receive(result(second.header, 11, wire::chip::unknown));
  receive(result(first.header, 22, wire::chip::unknown));
  EXPECT_EQ(std::vector<std::uint64_t>{7}, worker.take_completed());
  EXPECT_EQ(22, tensor[0]);
  EXPECT_EQ(11, tensor[elements]);
}

TEST_F(ChipWorkerTest, CountsRoundsOfEachVersion) {
  start(config_of(1));
  std::vector<std::int32_t> tensor(6 * elements);
  submit(0, DType::int32, tensor);
  for (std::uint32_t number = 0; number < 6; ++number) {
    const auto sent = take();
    EXPECT_EQ(number % 2, sent.header.version);
    EXPECT_EQ(number / 2, sent.header.round);
    receive(result(sent.header, 1, wire::chip::unknown));
  }
  EXPECT_TRUE(worker.idle());
}

TEST_F(ChipWorkerTest, AFewFloatsTooHaveAnExponentRound) {
  std::vector<float> tensor = {1.5F, -2.0F};
  submit(0, DType::float32, tensor);
  const auto exponents = take();
  EXPECT_EQ(static_cast<std::uint16_t>(wire::chip::Kind::exponents), exponents.header.echoed.kind);
  EXPECT_EQ(128, exponents.header.exponents[0]) << "of 2";
  EXPECT_EQ(0, word(exponents, 0));
  receive(result(exponents.header, 0, 130));  // another rank's is 8 or more
  const auto values = take();
  EXPECT_EQ(static_cast<std::uint16_t>(wire::chip::Kind::values), values.header.echoed.kind);
  EXPECT_EQ(1, values.header.version);
  // docs/numerics.md: shift = 31 - 2 - (130 - 126)
  EXPECT_EQ(3 << 24, word(values, 0));
  EXPECT_EQ(-(1 << 26), word(values, 1));
  receive(result(values.header, 1 << 25, wire::chip::unknown));
  EXPECT_EQ((std::vector<float>{1.0F, 1.0F}), tensor);
}

TEST_F(ChipWorkerTest, ABlockWithAnElementThatIsNotFiniteIsLost) {
  start(config_of(1));
  std::vector<float> tensor(2 * elements, 1.0F);
  tensor[elements] = std::numeric_limits<float>::infinity();
  submit(0, DType::float32, tensor);
  const auto exponents = take();
  EXPECT_EQ(wire::chip::not_finite, exponents.header.exponents[0]) << "both packets are of one block";
  receive(result(exponents.header, 0, wire::chip::not_finite));
  const auto first = take();
  EXPECT_EQ(wire::chip::not_finite, first.header.exponents[0]);
  for (std::size_t i = 0; i < elements; ++i) EXPECT_EQ(0, word(first, i));
  receive(result(first.header, 0, wire::chip::not_finite));
  EXPECT_TRUE(std::isnan(tensor[0]));
  receive(result(take().header, 0, wire::chip::unknown));
  EXPECT_TRUE(std::all_of(tensor.begin(), tensor.end(), [](float value) { return std::isnan(value); }));
  EXPECT_TRUE(worker.idle());
}

// Also if only another rank's is not.
TEST_F(ChipWorkerTest, NotFiniteIsWhatTheLargestExponentSays) {
  std::vector<std::uint16_t> tensor(3, 0x3c00);
  submit(0, DType::float16, tensor);
  receive(result(take().header, 0, wire::chip::not_finite));
  const auto values = take();
  EXPECT_EQ(0, word(values, 0));
  receive(result(values.header, 5, wire::chip::unknown));
  EXPECT_EQ(std::vector<std::uint16_t>(3, 0x7e00), tensor);
}

TEST_F(ChipWorkerTest, HalvesTravelAsBlockFixedPoint) {
  std::vector<std::uint16_t> tensor = {0x3c00, 0x4000};  // 1, 2
  submit(0, DType::float16, tensor);
  receive(result(take().header, 0, 128));
  const auto values = take();
  EXPECT_EQ(1 << 27, word(values, 0));
  EXPECT_EQ(1 << 28, word(values, 1));
  receive(result(values.header, 3 << 27, wire::chip::unknown));
  EXPECT_EQ((std::vector<std::uint16_t>{0x4200, 0x4200}), tensor);
}

// Where one rank knows no next block, the largest exponent is "unknown" for all, whatever the last rank echoes.
TEST_F(ChipWorkerTest, WhatNotAllKnowAheadIsAskedForAgain) {
  start(config_of(1));
  std::vector<float> tensor(elements * 5, 1.0F);  // the second block begins with chunk 4
  submit(0, DType::float32, tensor);
  receive(result(take().header, 0, 127));
  auto sent = take();
  EXPECT_EQ(127, sent.header.exponents[0]);
  sent.header.echoed.ahead_operation = wire::switchml::no_ahead;
  sent.header.echoed.ahead_chunk = 0;
  receive(result(sent.header, 1, wire::chip::unknown));
  sent = take();
  EXPECT_EQ(static_cast<std::uint16_t>(wire::chip::Kind::exponents), sent.header.echoed.kind);
  EXPECT_EQ(1U, sent.header.echoed.chunk);
  EXPECT_EQ(2U, worker.counters().exponent_rounds);
}

TEST_F(ChipWorkerTest, BelievesOnlyItsSwitchAndItsJob) {
  std::vector<std::int32_t> tensor(elements);
  submit(0, DType::int32, tensor);
  const auto sent = take();
  const auto good = result(sent.header, 1, wire::chip::unknown);
  receive(good, 2);
  auto other = sent.header;
  other.job_epoch = job_epoch + 1;
  receive(result(other, 1, wire::chip::unknown));
  EXPECT_EQ(2U, worker.counters().foreign);
  receive(result(sent.header, 1, wire::chip::unknown, 256));
  receive(kept.back());  // a contribution
  other = sent.header;
  other.slot = 2;
  receive(result(other, 1, wire::chip::unknown));
  receive(std::vector<std::byte>(3));
  EXPECT_EQ(4U, malformed_packets(worker.counters()));
  for (const auto& [version, round] : {std::pair{1, 0U}, std::pair{0, 1U}}) {
    other = sent.header;
    other.version = static_cast<std::uint8_t>(version);
    other.round = round;
    receive(result(other, 1, wire::chip::unknown));
  }
  EXPECT_EQ(2U, worker.counters().stale);
  EXPECT_FALSE(worker.failure().has_value());
  EXPECT_FALSE(worker.idle());
  receive(good);
  receive(good);
  EXPECT_TRUE(worker.idle());
  EXPECT_EQ(3U, worker.counters().stale);
  EXPECT_EQ(10U, outcomes(worker.counters()));
}

TEST_F(ChipWorkerTest, AnEchoThatDiffersIsAMismatch) {
  for (int field = 0; field < 4; ++field) {
    start(config_of());
    std::vector<std::int32_t> tensor(elements, 3);
    submit(0, DType::int32, tensor);
    auto header = take().header;
    if (field == 0) ++header.echoed.signature;
    if (field == 1) ++header.echoed.operation;
    if (field == 2) ++header.echoed.chunk;
    if (field == 3) header.echoed.kind = static_cast<std::uint16_t>(wire::chip::Kind::exponents);
    header.rank = 2;
    receive(result(header, 1, wire::chip::unknown));
    ASSERT_TRUE(worker.failure().has_value());
    EXPECT_EQ(WorkerFailure::Kind::mismatch, worker.failure()->kind);
    EXPECT_EQ(1U, worker.failure()->first_rank);
    EXPECT_EQ(2U, worker.failure()->second_rank);
    EXPECT_EQ(3, tensor[0]) << "nothing of it is taken";
  }
}

// A chip tells of no loss: what a switch's word would repair is not waited for.
TEST_F(ChipWorkerTest, RepeatsTheSameBytesOnceTheTimeOutIsOver) {
  start(config_of(16));
  std::vector<std::int32_t> tensor(17 * elements, 9);
  submit(0, DType::int32, tensor);
  now += 100us;
  receive(result(take().header, 1, wire::chip::unknown));  // a round trip
  for (int i = 0; i < 15; ++i) take();
  take();
  const auto last = kept.back();
  now += 1099us;
  worker.on_timer(now, sink);
  sink.clear();  // those whose first time-out had been set before there was a round trip stay silent for longer
  now += 2us;
  worker.on_timer(now, sink);
  ASSERT_FALSE(sink.sent().empty());
  EXPECT_EQ(last, sink.sent()[0].bytes);
}

// A queue that is too short for all of them would drop the same ranks' each time.
TEST_F(ChipWorkerTest, RanksRepeatAtMomentsOfTheirOwn) {
  std::set<Time> first, second, third;
  for (std::uint32_t rank = 0; rank < 8; ++rank) {
    WorkerConfig config = config_of(1);
    config.rank = rank;
    config.world_size = 8;
    start(config);
    std::vector<std::int32_t> tensor(1);
    submit(0, DType::int32, tensor);
    first.insert(worker.next_timeout());
    worker.on_timer(worker.next_timeout(), sink);
    second.insert(worker.next_timeout());
    worker.on_timer(worker.next_timeout(), sink);
    third.insert(worker.next_timeout());
  }
  EXPECT_EQ(1U, first.size());
  EXPECT_GE(second.size(), 4U);
  EXPECT_GE(third.size(), 4U);
}

TEST_F(ChipWorkerTest, EndsBeforeItsRoundsCannotBeNumberedAnyMore) {
  WorkerConfig config = config_of(1);
  config.last_round = 1;
  const auto lane = make_worker_lane(config);
  std::vector<std::int32_t> tensor(6 * elements);
  stream::Operation operation;
  operation.dtype = DType::int32;
  operation.elements = tensor.size();
  operation.data = tensor.data();
  ASSERT_TRUE(lane->submit(operation, now, sink));
  for (int i = 0; i < 4; ++i) {
    EXPECT_FALSE(lane->failure().has_value());
    const auto bytes = result(take().header, 1, wire::chip::unknown);
    const RxView view{bytes, endpoint(1)};
    lane->on_packets({&view, 1}, now, sink);
  }
  EXPECT_TRUE(sink.sent().empty());
  ASSERT_TRUE(lane->failure().has_value());
  EXPECT_EQ(protocol::LaneFailure::Kind::used_up, lane->failure()->kind);
  EXPECT_NE(std::string::npos, lane->failure()->what.find("join again")) << lane->failure()->what;
}

}  // namespace
}  // namespace netsum::switchml
