// The worker with hand-made packets: what it sends, what it believes, and when it repeats itself. Whole clusters are in
// tests/property.
#include "protocol/switchml/worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "support/recording_sink.h"

namespace netsum::switchml {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t job_epoch = 77;
constexpr std::uint32_t folded = 0xabcd;

Endpoint endpoint(std::uint16_t port) {
  Endpoint e;
  e.port = port;
  return e;
}

using testing::RecordingSink;

class WorkerTest : public ::testing::Test {
 protected:
  static WorkerConfig config() {
    WorkerConfig c;
    c.job_epoch = job_epoch;
    c.rank = 1;
    c.world_size = 3;
    c.rank_epoch = 5;
    c.folded_epochs = folded;
    c.slots = 2;
    c.aggregator = endpoint(1);
    return c;
  }

  void submit(std::uint64_t number, std::size_t elements) {
    values.emplace_back(elements);
    std::iota(values.back().begin(), values.back().end(), 0);
    stream::Operation operation;
    operation.number = number;
    operation.dtype = DType::int32;
    operation.elements = elements;
    operation.data = values.back().data();
    ASSERT_TRUE(worker.submit(operation, now, sink));
  }

  // The oldest datagram that was sent and not looked at.
  wire::switchml::ChunkPacket take(wire::switchml::Type type = wire::switchml::Type::contribution) {
    EXPECT_FALSE(sink.sent().empty());
    if (sink.sent().empty()) return {};
    kept.push_back(std::move(sink.sent().front().bytes));
    sink.sent().erase(sink.sent().begin());
    wire::switchml::Common common;
    wire::switchml::ChunkPacket packet;
    EXPECT_EQ(wire::switchml::parse_common(kept.back(), common), wire::ParseError::none);
    EXPECT_EQ(wire::switchml::parse_chunk(kept.back(), common, packet), wire::ParseError::none);
    EXPECT_EQ(common.type, type);
    EXPECT_EQ(common.sender, 1);
    EXPECT_EQ(common.rank_epoch, 5U);
    return packet;
  }

  // The result of a contribution: `value` everywhere.
  static std::vector<std::byte> result(wire::switchml::ChunkHeader header, std::int32_t value,
                                       wire::switchml::Common common = {wire::switchml::Type::result, 0, job_epoch,
                                                                        folded}) {
    std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
    wire::switchml::write_chunk_header(packet, common, header);
    for (std::size_t i = 0; i < header.elements; ++i) {
      store_le(packet.data() + wire::switchml::chunk_header_bytes + 4 * i, static_cast<std::uint32_t>(value));
    }
    wire::switchml::seal(packet);
    return packet;
  }

  void receive(const std::vector<std::byte>& packet, const Endpoint& source = endpoint(1)) {
    const RxView view{packet, source};
    worker.on_packets({&view, 1}, now, sink);
  }

  void wait() { worker.on_timer(now = worker.next_timeout(), sink); }

  Time now{1s};
  RecordingSink sink{[](std::span<const Endpoint> to, bool multicast) {
    EXPECT_FALSE(multicast);
    EXPECT_EQ(to.front(), endpoint(1));
  }};
  Worker worker{config()};
  std::deque<std::vector<std::int32_t>> values;
  std::deque<std::vector<std::byte>> kept;
};

// The packets' own time-outs go on.
TEST_F(WorkerTest, ProbesWithItsLastPacketsWhenNothingComes) {
  submit(0, 1000);
  const auto first = take(), second = take();
  now += 100us;
  receive(result(first.header, 1));
  const auto third = take();
  EXPECT_EQ(now + 200us, worker.next_timeout());
  wait();
  EXPECT_EQ(third.header.chunk, take().header.chunk) << "the newest first";
  EXPECT_EQ(second.header.chunk, take().header.chunk);
  EXPECT_EQ(2U, worker.counters().retransmissions);
  EXPECT_EQ(now + 400us, worker.next_timeout());
  receive(result(second.header, 1));
  EXPECT_EQ(3U, take().header.chunk);
}

// Ranks may not have begun: without a result nothing is probed.
TEST_F(WorkerTest, ProbesForNoOperationThatHasNoResult) {
  submit(0, 256);
  now += 100us;
  receive(result(take().header, 1));
  submit(1, 256);
  const auto sent = take();
  while (sink.sent().empty()) wait();
  EXPECT_GE(now - Time{1s}, 1ms) << "its time-out";
  EXPECT_EQ(sent.header.chunk, take().header.chunk);
}

TEST_F(WorkerTest, FillsItsWindowAndNoMore) {
  submit(0, 1000);
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    const auto sent = take();
    EXPECT_EQ(sent.header.operation, 0U);
    EXPECT_EQ(sent.header.chunk, chunk);
    EXPECT_EQ(sent.header.slot, chunk);
    EXPECT_EQ(sent.header.version, 0);
    EXPECT_EQ(sent.header.elements, 256);
    EXPECT_EQ(load_le<std::uint32_t>(sent.payload.data() + 4), chunk * 256 + 1);
  }
  EXPECT_TRUE(sink.sent().empty());
}

// 16-bit values: twice as many elements, no exponents; float32 tensors are narrowed on the way out and widened on the way
// in.
TEST_F(WorkerTest, NarrowValuesTravelAsTheyAre) {
  for (const bool wide : {false, true}) {
    std::vector<std::uint16_t> halves(700, 0x3c00);
    std::vector<float> floats(700, 1.0F);
    stream::Operation operation;
    operation.number = wide ? 1 : 0;
    operation.op = ReduceOp::avg;
    operation.dtype = wide ? DType::float32 : DType::float16;
    operation.wire = WireFormat::float16;
    operation.elements = 700;
    operation.data = wide ? static_cast<void*>(floats.data()) : halves.data();
    ASSERT_TRUE(worker.submit(operation, now, sink));
    std::vector<wire::switchml::ChunkPacket> sent;
    for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
      sent.push_back(take());
      EXPECT_EQ(sent.back().header.chunk, chunk);
      EXPECT_EQ(sent.back().header.elements, chunk == 0 ? 512 : 188);
      EXPECT_EQ(sent.back().header.dtype, DType::float16);
      EXPECT_EQ(ReduceOp::avg, sent.back().header.op);
      EXPECT_EQ(sent.back().header.exponents, 0);
      EXPECT_EQ(load_le<std::uint16_t>(sent.back().payload.data() + 2), 0x3c00);
    }
    EXPECT_TRUE(sink.sent().empty());
    for (const wire::switchml::ChunkPacket& chunk : sent) {
      for (const bool right : {false, true}) {  // first as another type, and as a sum, which nobody asked for
        wire::switchml::ChunkHeader header = chunk.header;
        const auto answer = [&](std::uint16_t value) {
          std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(header));
          wire::switchml::write_chunk_header(packet, {wire::switchml::Type::result, 0, job_epoch, folded}, header);
          for (std::size_t i = 0; i < header.elements; ++i)
            store_le(packet.data() + wire::switchml::chunk_header_bytes + 2 * i, value);
          wire::switchml::seal(packet);
          return packet;
        };
        if (right) {
          receive(answer(0x4248));
          continue;
        }
        const std::uint64_t results = worker.counters().results;
        header.dtype = DType::bfloat16;
        receive(answer(0x4248));
        header = chunk.header;
        header.op = ReduceOp::sum;
        receive(answer(0x4248));
        EXPECT_EQ(worker.counters().results, results);
      }
    }
    EXPECT_EQ(worker.take_completed(), std::vector<std::uint64_t>{operation.number});
    if (wide)
      EXPECT_EQ(floats, std::vector<float>(700, 3.140625F));
    else
      EXPECT_EQ(halves, std::vector<std::uint16_t>(700, 0x4248));
  }
}

// Rank 1 takes part 1 alone, and adds its own values to what comes. It is acknowledged the others, and takes a result, which
// IP multicast brings, for that.
TEST_F(WorkerTest, AReduceScatterKeepsItsOwnPart) {
  std::vector<std::int32_t> in(3 * 300), out(300, -1);
  std::iota(in.begin(), in.end(), 0);
  stream::Operation operation{
      .collective = stream::Collective::reduce_scatter, .dtype = DType::int32, .elements = in.size()};
  operation.parts = 3;
  operation.data = in.data();
  operation.out = out.data();
  ASSERT_TRUE(worker.submit(operation, now, sink));
  const wire::switchml::Common acknowledgement{wire::switchml::Type::acknowledgement, 0, job_epoch, folded};
  for (std::uint32_t number = 0; number < 6; ++number) {  // two chunks of each part, which take turns
    const std::uint32_t part = number % 3, of_part = number / 3;
    const auto sent = take();
    EXPECT_EQ(number, sent.header.chunk);
    const bool own = part == 1;
    const std::uint16_t elements = of_part == 0 ? 256 : 44;
    EXPECT_EQ(own ? 0 : elements, sent.header.elements);
    if (!own) {
      EXPECT_EQ(part * 300 + of_part * 256, load_le<std::uint32_t>(sent.payload.data()));
    }
    EXPECT_EQ(!own, sent.header.acknowledge_only);
    wire::switchml::ChunkHeader empty = sent.header;
    empty.acknowledge_only = false;
    empty.elements = 0;
    const std::uint64_t before = worker.counters().results;
    if (own) {
      receive(result(empty, 0, acknowledgement));
      EXPECT_EQ(before, worker.counters().results) << "it wants its values";
    }
    empty.elements = own || number == 5 ? elements : std::uint16_t{0};
    receive(empty.elements == 0 ? result(empty, 0, acknowledgement) : result(empty, 7 + static_cast<std::int32_t>(number)));
    EXPECT_EQ(before + 1, worker.counters().results);
  }
  EXPECT_EQ(std::vector<std::uint64_t>{0}, worker.take_completed());
  std::vector<std::int32_t> expected(in.begin() + 300, in.begin() + 600);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += i < 256 ? 8 : 11;
  EXPECT_EQ(expected, out);
}

TEST_F(WorkerTest, AnAllGatherGivesItsOwnPartAlone) {
  std::vector<std::int32_t> in(4, 11), out(12, -1);
  stream::Operation operation{.collective = stream::Collective::all_gather, .elements = 48};
  operation.parts = 3;
  operation.data = in.data();
  operation.out = out.data();
  ASSERT_TRUE(worker.submit(operation, now, sink));
  for (std::uint32_t part = 0; part < 3; ++part) {
    const auto sent = take();
    EXPECT_EQ(part == 1 ? 4 : 0, sent.header.elements);
    EXPECT_EQ(part == 1, sent.header.acknowledge_only);
    wire::switchml::ChunkHeader header = sent.header;
    header.acknowledge_only = false;
    header.elements = part == 1 ? 0 : 4;
    receive(part == 1 ? result(header, 0, {wire::switchml::Type::acknowledgement, 0, job_epoch, folded})
                      : result(header, static_cast<std::int32_t>(part)));
  }
  EXPECT_EQ((std::vector<std::int32_t>{0, 0, 0, 0, 11, 11, 11, 11, 2, 2, 2, 2}), out);
}

// Chunks begin in groups of two: without values in one packet, and when both slots are free.
class WorkerGroupTest : public WorkerTest {
 protected:
  void reduce_to(std::uint32_t root) {
    WorkerConfig grouped = config();
    grouped.slots = 4;
    grouped.group = 2;
    worker = Worker(grouped);
    values.emplace_back(5 * 256, 3);
    const stream::Operation operation{.collective = stream::Collective::reduce,
                                      .dtype = DType::int32,
                                      .elements = values.back().size(),
                                      .root = root,
                                      .data = values.back().data()};
    ASSERT_TRUE(worker.submit(operation, now, sink));
  }
  std::vector<std::uint32_t> take_run() {
    std::vector<std::uint32_t> chunks;
    EXPECT_FALSE(sink.sent().empty());
    wire::switchml::Common common;
    wire::switchml::RunPacket run;
    EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_common(sink.sent().at(0).bytes, common));
    EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_run(sink.sent().at(0).bytes, common, run));
    EXPECT_EQ(wire::switchml::Type::empty_contributions, common.type);
    run.for_each([&](const auto& member) { chunks.push_back(member.header.chunk); });
    sink.sent().erase(sink.sent().begin());
    return chunks;
  }
  static wire::switchml::ChunkHeader answer_to(std::uint32_t chunk, std::uint16_t elements, std::uint32_t root) {
    stream::Operation same{.collective = stream::Collective::reduce, .dtype = DType::int32, .elements = 5 * 256};
    same.root = root;
    wire::switchml::ChunkHeader header{.chunk = chunk, .slot = static_cast<std::uint16_t>(chunk % 4), .elements = elements};
    header.version = chunk / 4 % 2;
    header.signature = stream::signature_of(same, 256);
    return header;
  }
};

TEST_F(WorkerGroupTest, WhatHasNoValuesGoesInOnePacket) {
  reduce_to(1);
  using Chunks = std::vector<std::uint32_t>;
  EXPECT_EQ((Chunks{0, 1}), take_run());
  EXPECT_EQ((Chunks{2, 3}), take_run());
  EXPECT_EQ(2U, worker.counters().runs_sent);
  EXPECT_EQ(4U, worker.counters().contributions);
  receive(result(answer_to(1, 256, 1), 8));
  receive(result(answer_to(0, 256, 1), 8));
  const auto last = take();  // alone in its group, and with both slots of the former one free
  EXPECT_EQ(4U, last.header.chunk);
  worker.on_timer(now += 1s, sink);
  for (const std::uint32_t chunk : {4U, 2U, 3U}) {  // by slot
    const auto repeat = take();
    EXPECT_EQ(chunk, repeat.header.chunk) << "each by itself";
    EXPECT_EQ(0U, repeat.header.elements);
  }
}

TEST_F(WorkerGroupTest, AGroupWaitsForItsLastSlot) {
  reduce_to(0);
  for (std::uint32_t chunk = 0; chunk < 4; ++chunk) {
    const auto sent = take();
    EXPECT_EQ(chunk, sent.header.chunk);
    EXPECT_TRUE(sent.header.acknowledge_only);
    EXPECT_EQ(chunk % 2 == 0, sent.header.later) << "with the other one of its group";
  }
  const wire::switchml::Common many{wire::switchml::Type::acknowledgements, 0, job_epoch, folded};
  wire::switchml::Run run;
  for (const std::uint32_t chunk : {0U, 1U, 3U}) ASSERT_TRUE(run.take(answer_to(chunk, 0, 0)));
  std::vector<std::byte> packet(wire::switchml::run_bytes(run));
  wire::switchml::write_run_header(packet, many, run);
  wire::switchml::seal(packet);
  receive(packet);
  EXPECT_EQ(3U, worker.counters().results);
  EXPECT_EQ(4U, take().header.chunk);
  receive(packet);
  EXPECT_EQ(3U, worker.counters().stale);
  EXPECT_EQ(2U, outcomes(worker.counters()));
  // A slot too many: refused before it is looked up.
  run.first.slot = 7;
  wire::switchml::write_run_header(packet, many, run);
  wire::switchml::seal(packet);
  receive(packet);
  EXPECT_EQ(1U, worker.counters().malformed[static_cast<std::size_t>(wire::ParseError::field)]);
}

// An all-gather has a window of its own, beside a reduce-scatter whose chunks fill theirs, and ends when it is done.
TEST_F(WorkerTest, WhatLoadsTheOtherDirectionDoesNotWait) {
  submit(0, 2000);
  EXPECT_EQ(2U, sink.sent().size());
  static_cast<void>(take());
  static_cast<void>(take());
  std::vector<std::byte> bytes(12);
  const stream::Operation broadcast{
      .number = 1, .collective = stream::Collective::broadcast, .elements = 12, .root = 0, .data = bytes.data()};
  ASSERT_TRUE(worker.submit(broadcast, now, sink));
  const auto sent = take();
  EXPECT_EQ(config().slots, sent.header.slot);
  EXPECT_EQ(1U, sent.header.operation);
  wire::switchml::ChunkHeader header = sent.header;
  header.elements = 3;
  receive(result(header, 7));
  EXPECT_EQ(worker.take_completed(), std::vector<std::uint64_t>{1});
  EXPECT_FALSE(worker.idle());
  // What is behind the broadcast waits for its own window alone.
  submit(2, 10);
  EXPECT_TRUE(sink.sent().empty());
}

// Alg. 4: a result makes its slot send the chunk one window further, in the slot's other version.
TEST_F(WorkerTest, AResultMovesItsSlotOn) {
  submit(0, 700);
  static_cast<void>(take());
  const auto second = take();
  receive(result(second.header, 42));
  EXPECT_TRUE(sink.sent().empty());  // slot 1 has no third chunk: chunk 2 belongs to slot 0
  EXPECT_EQ(values[0][256], 42);
  EXPECT_EQ(values[0][255], 255);
  EXPECT_EQ(values[0][512], 512);
}

TEST_F(WorkerTest, EndsAnOperationOnce) {
  submit(0, 600);
  const auto first = take(), second = take();
  receive(result(first.header, 1));
  const auto third = take();
  EXPECT_EQ(third.header.chunk, 2U);
  EXPECT_EQ(third.header.slot, 0);
  EXPECT_EQ(third.header.version, 1);
  EXPECT_EQ(third.header.elements, 600 - 512);
  receive(result(third.header, 3));
  EXPECT_TRUE(worker.take_completed().empty());
  receive(result(second.header, 2));
  receive(result(second.header, 9));
  EXPECT_EQ(worker.take_completed(), std::vector<std::uint64_t>{0});
  EXPECT_TRUE(worker.take_completed().empty());
  EXPECT_TRUE(worker.idle());
  EXPECT_EQ(values[0][0], 1);
  EXPECT_EQ(values[0][300], 2);
  EXPECT_EQ(values[0][599], 3);
  EXPECT_EQ(worker.counters().stale, 1U);
}

TEST_F(WorkerTest, BelievesOnlyItsOwnSwitchAndJob) {
  submit(0, 256);
  const auto header = take().header;
  const auto untouched = values[0];
  receive(result(header, 9), endpoint(2));
  receive(result(header, 9, {wire::switchml::Type::result, 0, job_epoch + 1, folded}));
  receive(result(header, 9, {wire::switchml::Type::result, 0, job_epoch, folded + 1}));
  EXPECT_EQ(worker.counters().foreign, 3U);
  receive(result(header, 9, {wire::switchml::Type::contribution, 0, job_epoch, folded}));
  const auto differs = [&](auto change) {
    wire::switchml::ChunkHeader other = header;
    change(other);
    receive(result(other, 9));
  };
  differs([](auto& h) { h.operation = 1; });
  differs([](auto& h) { h.chunk = 1; });
  differs([](auto& h) { h.version = 1; });
  differs([](auto& h) { h.slot = 1; });
  differs([](auto& h) { h.slot = 2; });
  differs([](auto& h) { h.slot = 0xffff; });
  differs([](auto& h) { h.signature ^= 1; });
  differs([](auto& h) { h.elements = 255; });
  differs([](auto& h) { h.elements = 257; });
  auto damaged = result(header, 9);
  damaged.back() ^= std::byte{1};
  receive(damaged);
  for (std::size_t length = 0; length < damaged.size(); length += 13) {
    auto cut = result(header, 9);
    cut.resize(length);
    receive(cut);
  }
  EXPECT_EQ(values[0], untouched);
  EXPECT_FALSE(worker.idle());
  EXPECT_FALSE(worker.failure());
  EXPECT_EQ(worker.counters().results, 0U);
  receive(result(header, 9));
  EXPECT_TRUE(worker.idle());
}

// §4.6: values wait for the exponent that all ranks share, and are scaled by it.
TEST_F(WorkerTest, AsksForTheExponentFirst) {
  std::vector<float> real(256, 1.0F);
  stream::Operation operation;
  operation.elements = real.size();
  operation.data = real.data();
  ASSERT_TRUE(worker.submit(operation, now, sink));
  const auto asked = take(wire::switchml::Type::exponent_contribution);
  ASSERT_EQ(asked.header.exponents, 1);
  EXPECT_EQ(asked.header.elements, 0);
  const auto answer = [&](std::uint8_t exponent) {
    std::vector<std::byte> packet(wire::switchml::chunk_packet_bytes(asked.header));
    wire::switchml::write_chunk_header(packet, {wire::switchml::Type::exponent_result, 0, job_epoch, folded}, asked.header);
    packet[wire::switchml::chunk_header_bytes] = std::byte{exponent};
    wire::switchml::seal(packet);
    receive(packet);
    return take();
  };
  const auto own = static_cast<std::uint8_t>(asked.exponents[0]);
  const auto contribution = answer(static_cast<std::uint8_t>(own + 3));  // another rank has values eight times as large
  EXPECT_EQ(contribution.header.version, 1);
  const auto scaled = static_cast<std::int32_t>(load_le<std::uint32_t>(contribution.payload.data()));
  EXPECT_GT(scaled, 0);
  receive(result(contribution.header, 3 * scaled));
  EXPECT_EQ(real, std::vector<float>(256, 3.0F));
  EXPECT_EQ(worker.counters().exponent_rounds, 1U);
}

// The exponents of a stripe are scanned before its first chunk is sent: results overwrite it from then on.
TEST_F(WorkerTest, AsksAgainForTheExponentsOfAStripeThatItHasBegun) {
  WorkerConfig narrow = config();
  narrow.packet_elements = 64;
  narrow.slots = 1;
  worker = Worker(narrow);
  std::vector<float> floats(128, 1.0F);
  std::fill_n(floats.begin(), 64, 8.0F);  // it is these that the exponent of both is of
  ASSERT_TRUE(worker.submit({.number = 0, .elements = floats.size(), .data = floats.data()}, now, sink));
  const auto asked = take(wire::switchml::Type::exponent_contribution);
  const std::byte exponent = asked.exponents[0];
  wire::switchml::ChunkHeader header = asked.header;
  std::vector<std::byte> answer(wire::switchml::chunk_packet_bytes(header));
  answer[wire::switchml::chunk_header_bytes] = exponent;
  wire::switchml::write_chunk_header(answer, {wire::switchml::Type::exponent_result, 0, job_epoch, folded}, header);
  wire::switchml::seal(answer);
  receive(answer);
  header = take().header;
  EXPECT_EQ(header.ahead_chunk, 1U);
  header.ahead_operation = wire::switchml::no_ahead;  // as if another rank had not known
  header.exponents = 0;
  receive(result(header, 0));
  const auto again = take(wire::switchml::Type::exponent_contribution);
  EXPECT_EQ(again.header.chunk, 1U);
  EXPECT_EQ(again.exponents[0], exponent);
}

// Alg. 4, l. 20: the same bytes again, later and later.
TEST_F(WorkerTest, RepeatsWhatIsNotAnsweredWithGrowingPatience) {
  submit(0, 256);
  const auto first = sink.sent().front().bytes;
  sink.clear();
  const Time began = now;
  EXPECT_EQ(worker.next_timeout(), began + 20ms);
  worker.on_timer(now + 20ms - 1ns, sink);
  EXPECT_TRUE(sink.sent().empty());
  for (const Duration expected : {20ms, 60ms, 140ms, 300ms, 550ms, 800ms}) {
    wait();
    EXPECT_EQ(now - began, expected);
    ASSERT_EQ(sink.sent().size(), 1U);
    EXPECT_EQ(sink.sent().front().bytes, first);
    sink.clear();
  }
  EXPECT_EQ(worker.counters().retransmissions, 6U);
  wire::switchml::Common common;
  wire::switchml::ChunkPacket packet;
  ASSERT_EQ(wire::switchml::parse_common(first, common), wire::ParseError::none);
  ASSERT_EQ(wire::switchml::parse_chunk(first, common, packet), wire::ParseError::none);
  receive(result(packet.header, 1));
  wait();
  EXPECT_TRUE(sink.sent().empty());
  EXPECT_EQ(worker.next_timeout(), never);
}

// A window that takes longer than a time-out on its way: nothing is repeated while results come in order. What they overtake
// times out by itself, and so does everything once they stop.
TEST_F(WorkerTest, WaitsInAQueueAsLongAsResultsCome) {
  WorkerConfig wide = config();
  wide.slots = 64;
  worker = Worker(wide);
  submit(0, 10 * 64 * 256);
  std::deque<wire::switchml::ChunkHeader> queue;
  const auto pass = [&] {
    now += 1ms;
    worker.on_timer(now, sink);
    while (!sink.sent().empty()) queue.push_back(take().header);
  };
  const auto answer = [&] {
    receive(result(queue.front(), 1));
    queue.pop_front();
  };
  for (int packet = 0; packet < 70; ++packet) {
    pass();
    answer();
  }
  EXPECT_EQ(worker.counters().retransmissions, 0U);

  const wire::switchml::ChunkHeader lost = queue.front();
  queue.pop_front();
  for (int packet = 0; worker.counters().retransmissions == 0 && packet < 300; ++packet) {
    pass();
    answer();
  }
  EXPECT_EQ(worker.counters().retransmissions, 1U);
  EXPECT_EQ(queue.back(), lost);

  const Time stopped = now;
  while (worker.counters().retransmissions == 1) wait();
  EXPECT_LE(now - stopped, wide.max_timeout);
}

// Karn's rule: the answer to a repeat says nothing of the round trip.
TEST_F(WorkerTest, OnlyAnswersToFirstTransmissionsAreRoundTrips) {
  submit(0, 700);
  const auto first = take(), second = take();
  wait();
  sink.clear();
  now += 19ms;
  receive(result(first.header, 1));
  const Time sent = now;
  static_cast<void>(take());
  receive(result(second.header, 1));
  EXPECT_GE(worker.next_timeout(), sent + 20ms);  // the initial one still, and doubled
  receive(result({.chunk = 2, .signature = first.header.signature, .version = 1, .elements = 188}, 1));
  submit(1, 1);
  EXPECT_LT(worker.next_timeout(), now + 20ms);  // that one was answered at once
}

TEST_F(WorkerTest, AResultOfTheOtherRoundIsNotTaken) {
  submit(0, 256);
  const auto sent = take();
  receive(result(sent.header, 1, {wire::switchml::Type::exponent_result, 0, job_epoch, folded}));  // with values: malformed
  auto exponents = sent.header;
  exponents.elements = 0;
  receive(result(exponents, 1, {wire::switchml::Type::exponent_result, 0, job_epoch, folded}));
  EXPECT_EQ(worker.counters().stale, 1U);
  EXPECT_EQ(worker.counters().results, 0U);
  receive(result(sent.header, 1));
  EXPECT_EQ(worker.take_completed(), std::vector<std::uint64_t>{0});
}

// Without one, nothing shows that a packet which came over a network is as it was sent.
TEST_F(WorkerTest, ResultsHaveAChecksumUnlessTheAggregatorIsOnThisHost) {
  submit(0, 512);
  const auto sent = take();
  EXPECT_TRUE(sent.common.checked);
  const wire::switchml::Common unchecked{wire::switchml::Type::result, 0, job_epoch, folded, false};
  receive(result(sent.header, 1, unchecked));
  EXPECT_EQ(worker.counters().malformed[static_cast<std::size_t>(wire::ParseError::checksum)], 1U);
  EXPECT_EQ(worker.counters().results, 0U);

  WorkerConfig local = config();
  local.checksums = false;
  worker = Worker(local);
  sink.clear();
  submit(0, 512);
  EXPECT_FALSE(take().common.checked);
  receive(result(sent.header, 1, unchecked));
  receive(result(take().header, 1));  // with one, because another rank is elsewhere
  EXPECT_EQ(worker.counters().results, 2U);
}

// "Waiting for `rank`."
std::vector<std::byte> waiting_for(std::uint32_t rank, const wire::switchml::ChunkHeader& header,
                                   bool exponent_round = false) {
  wire::switchml::Ranks missing;
  missing.insert(rank);
  std::vector<std::byte> packet(wire::switchml::waiting_bytes(missing));
  wire::switchml::write_waiting(packet, {{wire::switchml::Type::waiting, 0, job_epoch, folded},
                                         header.operation,
                                         header.chunk,
                                         header.slot,
                                         exponent_round,
                                         missing});
  return packet;
}

// "Have yours, waiting for rank 2."
std::vector<std::byte> waiting_for_rank_2(const wire::switchml::ChunkHeader& header, bool exponent_round = false) {
  return waiting_for(2, header, exponent_round);
}

// What was sent before a probe that has its result is lost too: no other silence for every three packets.
TEST_F(WorkerTest, ProbesForWhatWasSentBeforeAProbeThatHasItsResult) {
  WorkerConfig wide = config();
  wide.slots = 8;
  worker = Worker(wide);
  submit(0, 8 * 256);
  std::vector<wire::switchml::ChunkHeader> sent;
  for (int chunk = 0; chunk < 8; ++chunk) sent.push_back(take().header);
  now += 100us;
  receive(result(sent[0], 1));
  wait();
  for (const std::uint32_t chunk : {7U, 6U, 5U}) EXPECT_EQ(chunk, take().header.chunk);
  receive(waiting_for_rank_2(sent[3]));  // its packet has come
  now += 10us;
  receive(result(sent[6], 1));
  for (const std::uint32_t chunk : {4U, 2U, 1U}) EXPECT_EQ(chunk, take().header.chunk);
  receive(result(sent[7], 1));
  EXPECT_EQ(3U, take().header.chunk) << "no longer held";
  receive(result(sent[4], 1));
  EXPECT_TRUE(sink.sent().empty());
}

// What the switch lacks of this rank is repeated a round trip and a quarter after it was sent, long before its time-out.
TEST_F(WorkerTest, ALossThatTheSwitchSeesIsRepeatedSoon) {
  submit(0, 2000);
  const auto first = take(), second = take();
  now += 4ms;
  receive(result(second.header, 1));  // a round trip of 4 ms
  const auto third = take();
  const Time timeout = worker.next_timeout();
  receive(waiting_for(1, first.header));
  EXPECT_EQ(worker.next_timeout(), Time{1s} + 5ms);
  EXPECT_LT(worker.next_timeout(), timeout);
  wait();
  EXPECT_EQ(take().header, first.header);
  EXPECT_TRUE(sink.sent().empty()) << "nothing was said of the other";
  receive(waiting_for(1, first.header));
  EXPECT_TRUE(sink.sent().empty()) << "the repeat is on its way";
  now += 20ms;
  receive(waiting_for(1, third.header));
  EXPECT_EQ(take().header, third.header) << "at once, as it is long due";
  EXPECT_EQ(worker.counters().losses, 3U);
}

// The slot is one round ahead at the switch: its result was lost, and repeating what it was for brings it again.
TEST_F(WorkerTest, ALostResultIsAskedForSoon) {
  submit(0, 2000);
  const auto first = take(), second = take();
  now += 4ms;
  receive(result(second.header, 1));
  static_cast<void>(take());
  now += 20ms;
  auto next = first.header;
  next.chunk = 2;
  receive(waiting_for(1, next));
  EXPECT_EQ(take().header, first.header);
  auto past = first.header;
  past.operation = 0;
  receive(result(first.header, 1));
  static_cast<void>(take());
  now += 20ms;
  receive(waiting_for(1, past));
  EXPECT_TRUE(sink.sent().empty()) << "of a round that has its result";
  EXPECT_EQ(worker.counters().stale, 1U);
}

// netsum simulate, chaos, seed 5633: eight slots that asked in step filled a queue of two packets, the same two each time.
TEST_F(WorkerTest, RepeatsOfAWindowThatWasLostTogetherSpreadOut) {
  WorkerConfig wide = config();
  wide.slots = 8;
  worker = Worker(wide);
  submit(0, 8 * 256);
  EXPECT_EQ(8U, sink.take().size());
  wait();
  EXPECT_EQ(8U, sink.take().size());  // all are due at once
  std::size_t most = 0;
  const Time first = worker.next_timeout();
  for (std::size_t repeated = 0; repeated < 8;) {
    wait();
    const std::size_t together = sink.take().size();
    most = std::max(most, together);
    repeated += together;
  }
  EXPECT_LE(most, 2U);
  EXPECT_GT(now - first, wide.initial_timeout / 2);
}

TEST_F(WorkerTest, AnAnswerThatNamesTheMissingQuietensAllButTheOldest) {
  submit(0, 512);
  const auto oldest = take(), other = take();
  now += 5ms;
  receive(waiting_for_rank_2(oldest.header));
  receive(waiting_for_rank_2(other.header));
  const auto stall = worker.oldest_stall();
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->missing.size(), 1U);
  EXPECT_TRUE(stall->missing.contains(2));
  EXPECT_EQ(stall->chunk, 0U);
  EXPECT_EQ(stall->told, now);
  const Time told = now;
  int repeats_of_other = 0;
  while (worker.next_timeout() < told + 3500ms) {
    wait();
    while (!sink.sent().empty()) repeats_of_other += take().header.chunk == 1;
  }
  EXPECT_EQ(repeats_of_other, 3);  // one a held_timeout
  // Somebody is back: the other's answer may be the one that was lost, and is not waited for so long any more.
  const Time back = now;
  receive(result(oldest.header, 1));
  EXPECT_LE(worker.next_timeout(), back + config().max_timeout);
  wait();
  EXPECT_EQ(take().header.chunk, 1U);
}

TEST_F(WorkerTest, AnswersOfOtherChunksNameNobody) {
  submit(0, 256);
  const auto header = take().header;
  const auto differs = [&](auto change, bool exponent_round = false) {
    wire::switchml::ChunkHeader other = header;
    change(other);
    receive(waiting_for_rank_2(other, exponent_round));
    EXPECT_TRUE(worker.oldest_stall()->missing.empty());
  };
  differs([](auto& h) { h.operation = 1; });
  differs([](auto& h) { h.chunk = 1; });
  differs([](auto& h) { h.slot = 1; });
  differs([](auto& h) { h.slot = 2; });
  differs([](auto& h) { h.slot = 0xffff; });
  differs([](auto&) {}, true);
  EXPECT_EQ(worker.counters().waiting, 0U);
  receive(waiting_for_rank_2(header));
  EXPECT_FALSE(worker.oldest_stall()->missing.empty());
}

TEST_F(WorkerTest, FailuresAreToldAndEndTheRepeats) {
  submit(0, 256);
  sink.clear();
  std::vector<std::byte> packet(wire::switchml::mismatch_bytes);
  wire::switchml::write_mismatch(packet, {{wire::switchml::Type::mismatch, 0, job_epoch, folded}, 0, 0, 11, 22, 1, 2});
  receive(packet);
  ASSERT_TRUE(worker.failure());
  EXPECT_EQ(worker.failure()->kind, WorkerFailure::Kind::mismatch);
  EXPECT_EQ(worker.failure()->first_rank, 1U);
  EXPECT_EQ(worker.failure()->second_rank, 2U);
  wait();
  EXPECT_TRUE(sink.sent().empty());
  EXPECT_EQ(worker.next_timeout(), never);
}

TEST_F(WorkerTest, ASwitchThatDoesNotKnowTheJobIsAFailure) {
  submit(3, 256);
  std::vector<std::byte> other(wire::switchml::common_bytes), earlier(wire::switchml::common_bytes),
      own(wire::switchml::common_bytes);
  wire::switchml::write_unknown_job(other, {wire::switchml::Type::contribution, 0, job_epoch + 1, 5});
  wire::switchml::write_unknown_job(earlier, {wire::switchml::Type::contribution, 0, job_epoch, 4});
  wire::switchml::write_unknown_job(own, {wire::switchml::Type::contribution, 0, job_epoch, 5});
  std::vector<std::byte> longer = own;
  longer.resize(wire::switchml::chunk_header_bytes);
  wire::switchml::seal(longer);
  receive(other);
  receive(earlier);  // the rank's former life asked
  receive(longer);
  receive(own, endpoint(2));
  EXPECT_EQ(3U, worker.counters().foreign);
  EXPECT_EQ(1U, worker.counters().malformed[static_cast<std::size_t>(wire::ParseError::length)]);
  EXPECT_FALSE(worker.failure());
  receive(own);
  ASSERT_TRUE(worker.failure());
  EXPECT_EQ(worker.failure()->kind, WorkerFailure::Kind::unknown_job);
  EXPECT_EQ(worker.failure()->operation, 3U);
}

TEST_F(WorkerTest, AnswersThatDoNotFitAreMalformed) {
  submit(0, 256);
  const auto sent = take();
  std::uint64_t malformed = 0;
  const auto refused = [&](const std::vector<std::byte>& packet) {
    const auto& count = worker.counters().malformed;
    receive(packet);
    EXPECT_EQ(++malformed, std::accumulate(std::begin(count), std::end(count), std::uint64_t{0}));
    EXPECT_EQ(worker.counters().results, 0U);
  };
  const auto changed = [&](auto change) {
    wire::switchml::ChunkHeader header = sent.header;
    change(header);
    refused(result(header, 1));
  };
  changed([](auto& h) { ++h.signature; });
  changed([](auto& h) { --h.elements; });
  changed([](auto& h) { h.slot = 4; });
  changed([](auto& h) {  // a look-ahead that nobody asked for
    h.ahead_operation = 0;
    h.exponents = 1;
  });
  worker = Worker(config());
  sink.clear();
  std::vector<float> ones(700, 1.0F);
  stream::Operation floats{.number = 0, .elements = ones.size(), .data = ones.data()};
  ASSERT_TRUE(worker.submit(floats, now, sink));
  const auto exponents = take(wire::switchml::Type::exponent_contribution);
  malformed = 0;
  const auto wrong_ahead = [&](auto change) {
    wire::switchml::ChunkHeader header = exponents.header;
    change(header);
    refused(result(header, 1, {wire::switchml::Type::exponent_result, 0, job_epoch, folded}));
  };
  wrong_ahead([](auto& h) { ++h.ahead_operation; });
  wrong_ahead([](auto& h) { ++h.ahead_chunk; });
  wrong_ahead([](auto& h) { ++h.exponents; });
  wrong_ahead([](auto& h) {
    h.ahead_operation = wire::switchml::no_ahead;
    h.exponents = 0;
  });
  std::vector<std::byte> waiting = waiting_for_rank_2(sent.header);
  waiting.resize(waiting.size() - 1);
  wire::switchml::seal(waiting);
  refused(waiting);
  std::vector<std::byte> mismatch(wire::switchml::mismatch_bytes + 1);
  wire::switchml::write_mismatch(std::span(mismatch).first(wire::switchml::mismatch_bytes),
                                 {{wire::switchml::Type::mismatch, 0, job_epoch, folded}, 0, 0, 1, 2, 0, 1});
  wire::switchml::seal(mismatch);
  refused(mismatch);
  std::vector<std::byte> probe(wire::switchml::probe_reply_bytes);
  wire::switchml::write_probe(probe, {{wire::switchml::Type::probe_reply, 0, job_epoch, folded}, 0});
  refused(probe);
  EXPECT_FALSE(worker.failure());
}

TEST_F(WorkerTest, ACopyHasTheSameStateAndGoesItsOwnWay) {
  const auto state = [](const Worker& w) {
    std::vector<std::byte> bytes;
    w.append_state(bytes);
    return bytes;
  };
  submit(0, 256);
  const auto sent = take();
  Worker copy(config());
  EXPECT_NE(state(worker), state(copy));
  copy = worker;
  EXPECT_EQ(state(worker), state(copy));
  std::vector<std::int32_t> elsewhere = values[0];
  copy.move_tensor(0, elsewhere.data());
  receive(result(sent.header, 9));
  EXPECT_EQ(values[0][0], 9);
  EXPECT_EQ(elsewhere[1], 1);
  EXPECT_NE(state(worker), state(copy));
  const auto packet = result(sent.header, 8);
  const RxView view{packet, endpoint(1)};
  copy.on_packets({&view, 1}, now, sink);
  EXPECT_EQ(elsewhere[1], 8);
  EXPECT_EQ(values[0][1], 9);
  EXPECT_EQ(state(worker), state(copy));
}

TEST_F(WorkerTest, TakesSoManyOperationsAtOnce) {
  stream::Operation barrier;
  barrier.collective = stream::Collective::barrier;
  for (barrier.number = 0; barrier.number < WorkerConfig{}.operations; ++barrier.number) {
    ASSERT_TRUE(worker.submit(barrier, now, sink)) << barrier.number;
  }
  EXPECT_FALSE(worker.submit(barrier, now, sink));
  receive(result(take().header, 0));
  EXPECT_EQ(worker.take_completed(), std::vector<std::uint64_t>{0});
  EXPECT_TRUE(worker.submit(barrier, now, sink));

  // Nor, if nobody takes what has completed.
  WorkerConfig few = config();
  few.operations = 2;
  few.lane = 1;  // a barrier's one chunk is on the other lane: it completes as it is submitted
  few.lanes = 3;
  worker = Worker(few);
  for (barrier.number = 0; barrier.number <= 3; barrier.number += 3) EXPECT_TRUE(worker.submit(barrier, now, sink));
  EXPECT_FALSE(worker.submit(barrier, now, sink));
  EXPECT_EQ(worker.take_completed().size(), 2U);
}

}  // namespace
}  // namespace netsum::switchml
