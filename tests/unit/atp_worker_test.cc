// The worker with hand-made packets: what it sends and where to, what it believes, and when it repeats itself.
#include "protocol/atp/worker.h"

#include <gtest/gtest.h>

#include <bit>
#include <deque>
#include <numeric>

#include "protocol/atp/shares.h"
#include "support/atp_packets.h"

namespace netsum::atp {
namespace {

using namespace std::chrono_literals;
using netsum::testing::AnyPacket;
using netsum::testing::Bytes;
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
using Sequences = std::vector<std::uint64_t>;

constexpr std::uint64_t job_epoch = 77;
constexpr std::uint32_t folded = 0xabcd, own_epoch = 5;
const Endpoint server = port(1), first_hop = port(2), stranger = port(3);
const Directions path{0, {3, 1, 0, 0}, {2, 1, 0, 0}};

WorkerConfig config() {
  WorkerConfig c;
  c.job_epoch = job_epoch;
  c.rank = 1;
  c.world_size = 3;
  c.rank_epoch = own_epoch;
  c.folded_epochs = folded;
  c.packet_elements = 4;
  c.window = 4;
  c.first_hop = first_hop;
  c.server = server;
  c.path = path;
  c.switch_slots = 1000;
  c.congestion_control = false;
  return c;
}

class AtpWorkerTest : public ::testing::Test {
 protected:
  void start(const WorkerConfig& c) { worker_ = Worker(c); }

  // int32: 0, 1, 2, ...
  void submit(std::uint64_t number, std::size_t elements) {
    auto& values = ints_.emplace_back(elements);
    std::iota(values.begin(), values.end(), 0);
    stream::Operation operation;
    operation.number = number;
    operation.dtype = DType::int32;
    operation.elements = elements;
    operation.data = values.data();
    ASSERT_TRUE(worker_.submit(operation, now_, sink_));
  }
  void submit_floats(std::uint64_t number, std::vector<float> values, ReduceOp op = ReduceOp::sum) {
    auto& kept = floats_.emplace_back(std::move(values));
    ASSERT_TRUE(worker_.submit({.number = number, .op = op, .elements = kept.size(), .data = kept.data()}, now_, sink_));
  }

  std::vector<AnyPacket> take() { return take_packets(sink_); }
  AnyPacket one() {
    const auto packets = take();
    EXPECT_EQ(1U, packets.size());
    return packets.empty() ? AnyPacket{} : packets.front();
  }
  bool silent() { return take().empty(); }
  static Sequences sequences(const std::vector<AnyPacket>& packets) {
    Sequences list;
    for (const AnyPacket& packet : packets) list.push_back(packet.common.sequence);
    return list;
  }

  void receive(const Bytes& packet, const Endpoint& source = first_hop, bool congested = false) {
    const RxView view{packet, source, congested};
    worker_.on_packets({&view, 1}, now_, sink_);
  }
  static Common answer(Type type, const AnyPacket& about) {
    Common c;
    c.type = type;
    c.job_epoch = job_epoch;
    c.rank_epoch = folded;
    c.sequence = about.common.sequence;
    c.signature = about.common.signature;
    c.index = about.common.index;
    return c;
  }
  // The result of a chunk, `value` everywhere.
  static Bytes result(const AnyPacket& of, std::int32_t value = 1) {
    return parameter_bytes_of(answer(Type::parameter, of), of.common.index, Values(of.values.size(), value));
  }
  static Bytes ask(const AnyPacket& about, bool floats = false) {
    Common c = answer(Type::ask, about);
    c.floats = floats;
    return parameter_bytes_of(c);
  }
  static Bytes waiting(const AnyPacket& about, const wire::atp::Ranks& missing) {
    Bytes packet(wire::atp::waiting_bytes(missing));
    wire::atp::write_waiting(packet, {answer(Type::waiting, about), missing});
    return packet;
  }
  static Bytes unknown_job(std::uint64_t epoch = job_epoch, std::uint32_t rank_epoch = own_epoch) {
    Bytes packet(wire::atp::common_bytes);
    Common c;
    c.job_epoch = epoch;
    c.rank_epoch = rank_epoch;
    wire::atp::write_unknown_job(packet, c);
    return packet;
  }

  // Until it repeats something; its first time-out may find that there is nothing to repeat.
  void wait() {
    const std::uint64_t before = counters().retransmissions;
    while (counters().retransmissions == before && worker_.next_timeout() != never) {
      worker_.on_timer(now_ = worker_.next_timeout(), sink_);
    }
  }
  const WorkerCounters& counters() { return worker_.counters(); }

  Time now_{1s};
  RecordingSink sink_;
  Worker worker_{config()};
  std::deque<Values> ints_;
  std::deque<std::vector<float>> floats_;
};

// ---- sending

TEST_F(AtpWorkerTest, ChecksumsAreLeftOutAndTakenForGrantedWhereSaid) {
  submit(0, 4);
  const AnyPacket checked = one();
  EXPECT_FALSE(checked.common.unchecked);
  Common c = answer(Type::parameter, checked);
  c.unchecked = true;
  receive(parameter_bytes_of(c, checked.common.index, Values(4, 1)));
  EXPECT_EQ(0U, counters().parameters) << "on its way it could have been damaged";
  EXPECT_EQ(1U, counters().malformed[static_cast<std::size_t>(wire::ParseError::checksum)]);
  receive(result(checked));
  EXPECT_EQ(1U, counters().parameters);

  WorkerConfig near = config();
  near.checksums = false;
  start(near);
  submit(0, 8);
  const std::vector<AnyPacket> unchecked = take();
  ASSERT_EQ(2U, unchecked.size());
  EXPECT_TRUE(unchecked[0].common.unchecked);
  c = answer(Type::parameter, unchecked[0]);
  c.unchecked = true;
  receive(parameter_bytes_of(c, unchecked[0].common.index, Values(4, 1)));
  receive(result(unchecked[1]));
  EXPECT_EQ(2U, counters().parameters) << "another rank may need one";
}

TEST_F(AtpWorkerTest, ForAChipPacketsHaveOneLengthAndSayWhereTheirSumMayNotFit) {
  WorkerConfig c = config();
  c.rules = Rules::chip;
  c.checksums = false;
  start(c);
  submit(0, 6);
  std::vector<AnyPacket> sent = take();
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ((Values{4, 5, 0, 0}), sent[1].values);
  receive(parameter_bytes_of(answer(Type::parameter, sent[1]), 0, Values{7, 8}));
  EXPECT_EQ(0U, counters().parameters) << "results are as long";
  for (const AnyPacket& packet : sent) receive(result(packet, 9));
  EXPECT_EQ((Values{9, 9, 9, 9, 9, 9}), ints_.front());

  // Of three ranks: (2^31 - 1) / 3 is 7.158 at a scale of 10^8.
  submit_floats(1, {7.1F, -7.1F});
  EXPECT_FALSE(one().common.overflow);
  submit_floats(2, {1, -7.2F});
  const AnyPacket large = one();
  EXPECT_TRUE(large.common.overflow);
  EXPECT_EQ(-719'999'981, large.values.at(1)) << "and is there all the same";
  receive(ask(large, true));
  EXPECT_EQ(4U, one().values.size()) << "floats too";
}

TEST_F(AtpWorkerTest, FillsItsWindowAndNoMore) {
  submit(0, 40);
  const auto sent = take();
  EXPECT_EQ((Sequences{0, 1, 2, 3}), sequences(sent));
  for (const AnyPacket& packet : sent) {
    EXPECT_EQ(first_hop, packet.to);
    EXPECT_EQ(Type::gradient, packet.common.type);
    EXPECT_EQ(path, packet.directions);
    EXPECT_EQ(own_epoch, packet.common.rank_epoch);
    EXPECT_EQ(job_epoch, packet.common.job_epoch);
    EXPECT_EQ(sent[0].common.signature, packet.common.signature);
    EXPECT_TRUE(packet.common.integers);
    EXPECT_FALSE(packet.common.resend || packet.common.direct || packet.common.ecn || packet.common.floats);
    EXPECT_LT(packet.common.index, 1000U);
    EXPECT_EQ(static_cast<std::int32_t>(4 * packet.common.sequence + 3), packet.values.at(3));
  }
  EXPECT_EQ(4U, counters().gradients);
}

TEST_F(AtpWorkerTest, TheExpectedResultMovesTheWindow) {
  submit(0, 40);
  const auto sent = take();
  receive(result(sent[1], 7));
  EXPECT_TRUE(silent());  // §3.6: only the expected one does
  receive(result(sent[0], 8));
  EXPECT_EQ((Sequences{4, 5}), sequences(take()));
  EXPECT_EQ(8, ints_[0][3]);
  EXPECT_EQ(7, ints_[0][7]);
  EXPECT_EQ(8, ints_[0][8]);  // not there yet
}

TEST_F(AtpWorkerTest, EndsAnOperationOnce) {
  submit(0, 7);
  const auto sent = take();
  ASSERT_EQ(2U, sent.size());
  EXPECT_EQ(3U, sent[1].values.size());
  receive(result(sent[1], 2));
  EXPECT_TRUE(worker_.take_completed().empty());
  EXPECT_FALSE(worker_.idle());
  receive(result(sent[1], 9));
  receive(result(sent[0], 1));
  EXPECT_EQ((Sequences{0}), worker_.take_completed());
  EXPECT_TRUE(worker_.take_completed().empty());
  EXPECT_TRUE(worker_.idle());
  EXPECT_EQ((Values{1, 1, 1, 1, 2, 2, 2}), ints_[0]);
  EXPECT_EQ(1U, counters().stale);
  EXPECT_FALSE(worker_.oldest_stall());
  wait();
  EXPECT_TRUE(silent());
  EXPECT_EQ(never, worker_.next_timeout());
}

TEST_F(AtpWorkerTest, OperationsFollowEachOtherWithoutAGap) {
  submit(5, 4);
  submit(6, 4);
  submit(7, 4);
  const auto sent = take();
  EXPECT_EQ((Sequences{0, 1, 2}), sequences(sent));
  EXPECT_NE(sent[0].common.signature, sent[1].common.signature);  // the place in the stream is part of it
  receive(result(sent[2]));
  receive(result(sent[0]));
  EXPECT_EQ((Sequences{7, 5}), worker_.take_completed());
  receive(result(sent[1]));
  EXPECT_EQ((Sequences{6}), worker_.take_completed());
}

TEST_F(AtpWorkerTest, ABarrierIsOneEmptyChunk) {
  ASSERT_TRUE(worker_.submit({.number = 0, .collective = stream::Collective::barrier}, now_, sink_));
  const AnyPacket sent = one();
  EXPECT_TRUE(sent.values.empty());
  receive(result(sent));
  EXPECT_EQ((Sequences{0}), worker_.take_completed());
}

TEST_F(AtpWorkerTest, OnlyTheRootOfABroadcastHasValues) {
  Values tensor{1, 2};
  stream::Operation operation{.number = 0, .collective = stream::Collective::broadcast, .elements = 7, .root = 0};
  operation.data = tensor.data();
  ASSERT_TRUE(worker_.submit(operation, now_, sink_));
  AnyPacket sent = one();
  EXPECT_TRUE(sent.values.empty());
  sent.values.resize(2);
  receive(result(sent, 0x03030303));
  EXPECT_EQ((Values{0x03030303, 0x00030303}), tensor);  // seven bytes
  operation.root = 1;
  operation.number = 1;
  ASSERT_TRUE(worker_.submit(operation, now_, sink_));
  EXPECT_EQ((Values{0x03030303, 0x00030303}), one().values);
}

TEST_F(AtpWorkerTest, FloatsTravelScaled) {
  submit_floats(0, {1.5F, -2});
  const AnyPacket sent = one();
  EXPECT_EQ((Values{150'000'000, -200'000'000}), sent.values);
  EXPECT_FALSE(sent.common.integers || sent.common.overflow || sent.common.floats);
  receive(parameter_bytes_of(answer(Type::parameter, sent), 0, {300'000'000, 0}));
  EXPECT_EQ((std::vector<float>{3, 0}), floats_[0]);
  submit_floats(1, {1, 100});
  EXPECT_TRUE(one().common.overflow);
}

// ---- the scale (§B.3)

using Exponents = std::vector<int>;

// Chunk k's largest value is 1.5 * 2^k, whose biased exponent is 127 + k.
std::vector<float> growing(std::size_t chunks) {
  std::vector<float> values;
  for (std::size_t i = 0; i < chunks * 4; ++i) {
    values.push_back(i % 4 == 2 ? -1.5F * static_cast<float>(std::uint64_t{1} << i / 4) : 0.25F);
  }
  return values;
}

Exponents exponents_of(const std::vector<AnyPacket>& packets) {
  Exponents list;
  for (const AnyPacket& packet : packets) list.push_back(packet.common.exponent);
  return list;
}

class AtpScalingTest : public AtpWorkerTest {
 protected:
  void SetUp() override {
    WorkerConfig c = config();
    c.scaling = Scaling::dynamic;
    start(c);
  }
  static Bytes result_saying(std::uint8_t exponent, const AnyPacket& of, std::int32_t value = 1) {
    Common c = answer(Type::parameter, of);
    c.exponent = exponent;
    return parameter_bytes_of(c, of.common.index, Values(of.values.size(), value));
  }
};

TEST_F(AtpScalingTest, AChunkSaysTheExponentOfTheBlockAWindowLater) {
  WorkerConfig c = config();
  c.scaling = Scaling::dynamic;
  c.packet_elements = scale_block / 2;
  start(c);
  std::vector<float> values(4 * scale_block + 1, 0.25F);
  values[2 * scale_block - 1] = 100;
  values[2 * scale_block] = 3;
  values[4 * scale_block - 1] = -4;
  submit_floats(0, values);
  const auto sent = take();
  EXPECT_EQ((Exponents{128, 128, 129, 129}), exponents_of(sent));
  for (const AnyPacket& packet : sent) receive(result(packet, 1 << 30));  // where the values were
  const auto then = take();
  EXPECT_EQ((Exponents{125, 0, 0, 0}), exponents_of(then));
  for (const AnyPacket& packet : then) receive(result(packet));
  EXPECT_EQ((Exponents{0}), exponents_of(take()));
}

TEST_F(AtpScalingTest, NoChunkIsOfTwoBlocks) {
  WorkerConfig c = config();
  c.scaling = Scaling::dynamic;
  c.packet_elements = 3000;
  c.window = 8;
  start(c);
  submit_floats(0, std::vector<float>(2 * scale_block + 5));
  std::vector<std::size_t> lengths;
  for (const AnyPacket& packet : take()) lengths.push_back(packet.values.size());
  EXPECT_EQ((std::vector<std::size_t>{3000, 3000, 2192, 3000, 3000, 2192, 5}), lengths);
}

// In the first window nobody knows the others' values: all send at 10^8, and who sees that this is not the block's scale
// says that it does not fit.
TEST_F(AtpScalingTest, WhoKnowsThatTheScaleIsAnotherSaysSo) {
  submit_floats(0, {0.25F, 0.25F, 0.25F, 0.25F, 100});
  const auto sent = take();
  ASSERT_EQ(2U, sent.size());
  EXPECT_TRUE(sent[0].common.overflow) << "it fits, but is of one block with what does not";
  EXPECT_TRUE(sent[1].common.overflow);
  receive(ask(sent[0], true));
  const AnyPacket floats = one();
  EXPECT_TRUE(floats.common.floats);
  EXPECT_EQ(127 + 6, floats.common.exponent);
  start(config());  // a job whose scale is fixed
  submit_floats(0, {0.25F, 0.25F, 0.25F, 0.25F, 100});
  const auto fixed = take();
  EXPECT_FALSE(fixed[0].common.overflow);
  receive(ask(fixed[1], true));
  EXPECT_EQ(0, one().common.exponent);
}

// Whether a rank has issued the next call when it sends depends on the time.
TEST_F(AtpScalingTest, NothingIsSaidOfAnotherOperation) {
  submit_floats(0, growing(2));
  submit_floats(1, growing(4));
  EXPECT_EQ((Exponents{0, 0, 0, 0}), exponents_of(take()));
  WorkerConfig c = config();
  c.scaling = Scaling::dynamic;
  start(c);
  submit_floats(0, growing(3));
  submit_floats(1, growing(5));
  EXPECT_EQ((Exponents{0, 0, 0, 127 + 4}), exponents_of(take()));
}

TEST_F(AtpScalingTest, NothingIsSaidOfWhatIsNotScaled) {
  submit(0, 40);
  EXPECT_EQ((Exponents{0, 0, 0, 0}), exponents_of(take()));
  start(config());  // a job whose scale is fixed
  submit_floats(0, growing(10));
  EXPECT_EQ((Exponents{0, 0, 0, 0}), exponents_of(take()));
}

TEST_F(AtpScalingTest, AResultDecidesTheScaleOfExactlyTheChunkAWindowLater) {
  submit_floats(0, growing(10));
  const auto sent = take();
  EXPECT_EQ((Values{25'000'000, 25'000'000, -150'000'000, 25'000'000}), sent[0].values);  // 10^8
  receive(result_saying(136, sent[0]));  // some rank has up to 2^10: three of them fit times 2^19
  const auto fourth = one();
  EXPECT_EQ((Values{1 << 17, 1 << 17, -24 << 19, 1 << 17}), fourth.values);
  EXPECT_FALSE(fourth.common.overflow);
  EXPECT_EQ(1U, counters().rescaled);
  receive(result_saying(126, sent[1]));  // below 1: three of them fit times 10^8
  const auto fifth = one();
  EXPECT_TRUE(fifth.common.overflow);  // this rank's own do not, whatever was said
  EXPECT_EQ(1U, counters().rescaled);
  receive(result(fourth, 100 << 19));
  EXPECT_EQ((std::vector<float>{100, 100, 100, 100}),
            (std::vector<float>{floats_[0].begin() + 16, floats_[0].begin() + 20}));
  receive(result(fifth, 300'000'000));
  EXPECT_EQ(3, floats_[0][20]);
  // Nothing was said of chunk 8, which is next in the place of chunk 4.
  receive(result(sent[2]));
  receive(result(sent[3]));
  const auto later = take();
  ASSERT_EQ((Sequences{6, 7, 8, 9}), sequences(later));
  EXPECT_EQ(25'000'000, later[2].values[0]);
}

TEST_F(AtpScalingTest, ARepeatSaysTheSameAtTheSameScale) {
  submit_floats(0, growing(10));
  const auto sent = take();
  for (const AnyPacket& packet : sent) receive(result_saying(138, packet));
  const auto then = take();
  EXPECT_EQ((Exponents{136, 136, 0, 0}), exponents_of(then));
  const auto same = [&](const std::vector<AnyPacket>& packets) {
    EXPECT_FALSE(packets.empty());
    for (const AnyPacket& packet : packets) {
      const AnyPacket& first = then.at(packet.common.sequence - 4);
      EXPECT_EQ(first.common.exponent, packet.common.exponent);
      if (!packet.common.floats) {
        EXPECT_EQ(first.values, packet.values);
      }
    }
  };
  for (int i = 0; i < 20; ++i) {  // plainly, as resends, and past the switches
    wait();
    same(take());
  }
  EXPECT_GT(counters().bypasses, 0U);
  receive(ask(then[0]));
  same(take());
  receive(ask(then[0], true));
  const auto floats = take();
  EXPECT_TRUE(floats.at(0).common.floats);
  same(floats);
}

TEST_F(AtpScalingTest, AResultOfIntegersSaysNoExponent) {
  submit(0, 4);
  const AnyPacket sent = one();
  receive(result_saying(130, sent));
  EXPECT_EQ(1U, counters().malformed[static_cast<std::size_t>(wire::ParseError::field)]);
  receive(result(sent));
  EXPECT_TRUE(worker_.idle());
}

// Pieces are dealt by what lanes had before: what is said, and so the result's bits, must not depend on that.
TEST_F(AtpScalingTest, NothingIsSaidOfAnotherPiece) {
  WorkerConfig c = config();
  c.scaling = Scaling::dynamic;
  c.window = 1;
  c.packet_elements = 1 << 13;
  c.lanes = 2;
  start(c);
  constexpr std::size_t piece = atp::Shares::piece_elements;
  std::vector<float> values(2 * piece + (1 << 13) + 1, 1.0F);
  values[(1 << 13) + 5] = 2;  // this lane's chunk 1
  values[piece] = 1e9F;       // the other lane's
  values[piece - 1] = 4;      // its chunk 127, the last
  values[2 * piece + 7] = 8;  // its second piece
  values.back() = 16;
  submit_floats(0, values);
  Exponents said;
  for (std::size_t i = 0; i < 130; ++i) {
    const AnyPacket packet = one();
    said.push_back(packet.common.exponent);
    receive(result(packet));
  }
  EXPECT_EQ(1U, worker_.take_completed().size());
  EXPECT_EQ(128, said[0]);
  for (std::size_t i = 1; i < 126; ++i) EXPECT_EQ(127, said[i]) << i;
  EXPECT_EQ((Exponents{129, 0, 131, 0}), (Exponents{said.begin() + 126, said.end()}));
}

TEST_F(AtpWorkerTest, ALaneHasItsShareAlone) {
  WorkerConfig c = config();
  c.lanes = 2;
  c.lane = 1;
  start(c);
  submit(0, 4);  // the first lane's
  EXPECT_TRUE(silent());
  EXPECT_EQ((Sequences{0}), worker_.take_completed());
  EXPECT_TRUE(worker_.idle());
  submit(1, 2);
  EXPECT_EQ((Values{0, 1}), one().values);
}

TEST_F(AtpWorkerTest, PiecesOfALongTensorFollowEachOther) {
  WorkerConfig c = config();
  c.packet_elements = 10'000;
  c.window = 200;
  start(c);
  submit(0, atp::Shares::piece_elements + 5);
  const auto sent = take();
  ASSERT_EQ(106U, sent.size());
  EXPECT_EQ(atp::Shares::piece_elements - 1'040'000, sent[104].values.size());  // the end of the first
  EXPECT_EQ(5U, sent[105].values.size());
  EXPECT_EQ(atp::Shares::piece_elements, sent[105].values[0]);
}

TEST_F(AtpWorkerTest, TakesNoMoreOperationsThanItHasPlacesFor) {
  WorkerConfig c = config();
  c.operations = 2;
  start(c);
  submit(0, 1);
  submit(1, 1);
  Values values(1);
  const stream::Operation third{.number = 2, .dtype = DType::int32, .elements = 1, .data = values.data()};
  EXPECT_FALSE(worker_.submit(third, now_, sink_));
  const auto sent = take();
  receive(result(sent[0]));
  receive(result(sent[1]));
  EXPECT_FALSE(worker_.submit(third, now_, sink_));  // nobody has fetched the completed ones
  EXPECT_EQ(2U, worker_.take_completed().size());
  EXPECT_TRUE(worker_.submit(third, now_, sink_));
}

// ---- §3.6: remapping

TEST_F(AtpWorkerTest, AnotherIndexHoldsFromExactlyOneWindowLater) {
  submit(0, 100);
  const auto first = take();
  receive(parameter_bytes_of(answer(Type::parameter, first[0]), 777, Values(4, 1)));
  const AnyPacket next = one();
  EXPECT_EQ(4U, next.common.sequence);
  EXPECT_EQ(777U, next.common.index);
  EXPECT_EQ(1U, counters().remapped);
  for (std::size_t i = 1; i < 4; ++i) receive(result(first[i]));
  const auto second = take();
  EXPECT_EQ((Sequences{5, 6, 7}), sequences(second));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(first[i + 1].common.index, second[i].common.index);
  receive(result(next));
  EXPECT_EQ(777U, one().common.index);  // and from then on
  EXPECT_EQ(1U, counters().remapped);
  receive(ask(second[0]));
  EXPECT_EQ(second[0].common.index, one().common.index);  // a repeat goes where the first went
}

// ---- §3.7: loss

TEST_F(AtpWorkerTest, AnOvertakenChunkIsResentAfterARoundTrip) {
  WorkerConfig c = config();
  c.window = 8;
  start(c);
  submit(0, 100);
  const auto sent = take();
  now_ += 2ms;
  receive(result(sent[1]));
  receive(result(sent[2]));
  worker_.on_timer(now_ + 3ms, sink_);
  EXPECT_TRUE(silent());  // results may be reordered
  receive(result(sent[3]));
  worker_.on_timer(now_ + 2ms - 1ns, sink_);
  EXPECT_TRUE(silent());  // another rank's packet may have been lost, and is being repeated
  worker_.on_timer(now_ += 2ms, sink_);
  const AnyPacket again = one();
  EXPECT_EQ(0U, again.common.sequence);
  EXPECT_TRUE(again.common.resend);
  EXPECT_FALSE(again.common.direct);
  EXPECT_EQ(sent[0].values, again.values);
  for (std::size_t i = 4; i < 8; ++i) receive(result(sent[i]));
  worker_.on_timer(now_ += 2ms, sink_);
  EXPECT_TRUE(silent());  // once
  EXPECT_EQ(1U, counters().fast_resends);
  EXPECT_EQ(1U, counters().resends);
  EXPECT_EQ(1U, counters().retransmissions);
  receive(result(sent[0]));
  EXPECT_EQ(8U, take().size());
}

TEST_F(AtpWorkerTest, ByThePapersRulesAllThatIsOvertakenIsResentAtOnceAndNoSwitchIsLeftOut) {
  WorkerConfig c = config();
  c.window = 8;
  c.rules = Rules::paper;
  start(c);
  submit(0, 100);
  const auto sent = take();
  now_ += 2ms;
  for (std::size_t i = 1; i < 4; ++i) receive(result(sent[i]));
  worker_.on_timer(now_, sink_);
  const AnyPacket again = one();
  EXPECT_EQ(0U, again.common.sequence);
  EXPECT_TRUE(again.common.resend);
  for (int silence = 0; silence < 8; ++silence) {
    worker_.on_timer(now_ += 1s, sink_);
    for (const AnyPacket& packet : take()) EXPECT_TRUE(packet.common.resend);
  }
  EXPECT_EQ(0U, counters().bypasses);
}

TEST_F(AtpWorkerTest, EachLossIsFoundByItself) {
  WorkerConfig c = config();
  c.window = 8;
  start(c);
  submit(0, 32);
  const auto sent = take();
  now_ += 2ms;
  for (const std::size_t i : {1U, 3U, 4U, 6U, 7U}) receive(result(sent[i]));
  worker_.on_timer(now_ += 2ms, sink_);
  const auto again = take();
  EXPECT_EQ((Sequences{0, 2}), sequences(again));  // of what follows 5, only two were sent
  for (const AnyPacket& packet : again) EXPECT_TRUE(packet.common.resend);
  now_ += 16ms;  // the time-out of 5: later results are there, so its own is probably lost
  worker_.on_timer(now_, sink_);
  const auto late = take();
  ASSERT_FALSE(late.empty());
  for (const AnyPacket& packet : late) EXPECT_TRUE(packet.common.resend);
}

// Repeats have places of their own in the order, so a lost one costs no time-out either.
TEST_F(AtpWorkerTest, ALostResendIsOvertakenToo) {
  WorkerConfig c = config();
  c.window = 64;
  c.congestion_control = true;
  c.packet_elements = 2048;
  start(c);
  submit(0, 400 * 2048);
  auto sent = take();
  now_ += 2ms;
  for (std::size_t i = 1; i < sent.size(); ++i) receive(result(sent[i]));
  sent = take();
  ASSERT_LT(4U, sent.size());
  worker_.on_timer(now_ += 2ms, sink_);
  EXPECT_EQ((Sequences{0}), sequences(take()));
  for (const AnyPacket& packet : sent) receive(result(packet));
  sent = take();  // after the repeat
  ASSERT_LT(3U, sent.size());
  for (const AnyPacket& packet : sent) receive(result(packet));
  static_cast<void>(take());
  worker_.on_timer(now_ += 3ms, sink_);
  const AnyPacket again = take().at(0);
  EXPECT_EQ(0U, again.common.sequence);
  EXPECT_TRUE(again.common.resend);
  EXPECT_EQ(2U, counters().fast_resends);
}

// What later results have found says nothing of the switches, and is no reason for more patience.
TEST_F(AtpWorkerTest, RepeatsWithoutATimeOutNeitherDoubleItNorBypassSwitches) {
  WorkerConfig c = config();
  c.window = 8192;
  c.congestion_control = true;
  c.packet_elements = 512;
  start(c);
  submit(0, 9000 * 512);
  auto sent = take();
  now_ += 2ms;
  for (std::size_t i = 1; i < sent.size(); ++i) receive(result(sent[i]));
  sent = take();
  for (std::uint64_t repeats = 1; repeats <= 5; ++repeats) {
    worker_.on_timer(now_ += 3ms, sink_);
    EXPECT_EQ((Sequences{0}), sequences(take()));
    ASSERT_EQ(repeats, counters().fast_resends);
    for (int turn = 0; turn < 2; ++turn) {  // of what was sent before the repeat, and after it
      for (const AnyPacket& packet : std::exchange(sent, {})) receive(result(packet));
      sent = take();
      ASSERT_LE(3U, sent.size());
    }
  }
  EXPECT_EQ(0U, counters().bypasses);
  EXPECT_EQ(first_hop, sent.back().to);
}

TEST_F(AtpWorkerTest, TheWindowCountsWhatIsInFlight) {
  WorkerConfig c = config();
  c.window = 64;
  c.congestion_control = true;
  c.packet_elements = 2048;
  start(c);
  submit(0, 400 * 2048);
  const auto sent = take();
  const std::uint32_t window = worker_.congestion_window();
  ASSERT_EQ(window, sent.size());
  ASSERT_LT(window, 32U);
  for (std::size_t i = 1; i < sent.size(); ++i) receive(result(sent[i]));
  // All but the first, and as many as the window grew: the hole holds up nothing.
  EXPECT_EQ(worker_.congestion_window() - 1, take().size());
}

TEST_F(AtpWorkerTest, AWindowThatNothingWaitsForDoesNotGrow) {
  WorkerConfig c = config();
  c.window = 256;
  c.congestion_control = true;
  start(c);
  const std::uint32_t window = worker_.congestion_window();
  for (std::uint64_t i = 0; i < 100; ++i) {
    submit(i, 4);
    receive(result(one()));
  }
  EXPECT_EQ(window, worker_.congestion_window());
}

TEST_F(AtpWorkerTest, ToldOfALossItRepeatsPlainlyAndOnce) {
  submit(0, 16);
  const auto sent = take();
  receive(waiting(sent[1], ranks_of({1, 2})));
  const AnyPacket again = one();
  EXPECT_EQ(1U, again.common.sequence);
  EXPECT_FALSE(again.common.resend);
  EXPECT_FALSE(again.common.direct);
  receive(waiting(sent[1], ranks_of({1, 2})));
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, counters().losses);
  EXPECT_EQ(1U, counters().stale);
  EXPECT_EQ(0U, counters().waiting);  // the chunk is not held
}

TEST_F(AtpWorkerTest, RepeatsPlainlyThenAsAResendWithGrowingPatience) {
  submit(0, 4);
  const Bytes first = sink_.take().at(0).bytes;
  const Time began = now_;
  worker_.on_timer(now_ + 20ms - 1ns, sink_);
  EXPECT_TRUE(silent());
  wait();
  EXPECT_EQ(20ms, now_ - began);
  const auto plain = sink_.take();
  ASSERT_EQ(1U, plain.size());
  EXPECT_EQ(first, plain[0].bytes);
  EXPECT_EQ(first_hop, plain[0].to);
  for (const Duration expected : {60ms, 140ms}) {
    wait();
    EXPECT_EQ(expected, now_ - began);
    const AnyPacket resent = one();
    EXPECT_EQ(first_hop, resent.to);
    EXPECT_TRUE(resent.common.resend);
    EXPECT_FALSE(resent.common.direct);
    EXPECT_EQ((Values{0, 1, 2, 3}), resent.values);
  }
  EXPECT_EQ(3U, counters().retransmissions);
  EXPECT_EQ(2U, counters().resends);
}

TEST_F(AtpWorkerTest, InSilenceTheOldestAsksForAll) {
  WorkerConfig c = config();
  c.window = 8;
  start(c);
  submit(0, 64);
  const auto sent = take();
  ASSERT_EQ(8U, sent.size());
  for (int i = 0; i < 3; ++i) {
    wait();
    EXPECT_EQ((Sequences{0}), sequences(take()));
  }
  // Nothing was lost: a rank or the switch was late.
  now_ += 1ms;
  for (const AnyPacket& packet : sent) receive(result(packet));
  EXPECT_EQ(8U, take().size());
  EXPECT_EQ(3U, counters().retransmissions);
}

TEST_F(AtpWorkerTest, RepeatsOfAWindowThatWasLostTogetherSpreadOut) {
  WorkerConfig c = config();
  c.window = 8;
  start(c);
  submit(0, 32);
  const auto sent = take();
  EXPECT_EQ(8U, sent.size());
  wait();
  EXPECT_EQ((Sequences{0}), sequences(take()));
  receive(result(sent[0]));
  wait();
  EXPECT_EQ((Sequences{1, 2, 3, 4, 5, 6, 7}), sequences(take()));
  for (std::size_t repeated = 0; repeated < 7;) {
    wait();
    const std::size_t together = take().size();
    EXPECT_LE(together, 2U);
    repeated += together;
  }
}

// Karn's rule: the answer to a repeat says nothing of the round trip.
TEST_F(AtpWorkerTest, OnlyAnswersToFirstTransmissionsAreRoundTrips) {
  submit(0, 4);
  AnyPacket sent = one();
  wait();
  static_cast<void>(take());
  receive(result(sent));
  submit(1, 4);
  EXPECT_EQ(now_ + 20ms, worker_.next_timeout());  // the initial one still
  sent = one();
  now_ += 2ms;
  receive(result(sent));
  submit(2, 4);
  EXPECT_EQ(now_ + 6ms, worker_.next_timeout());  // 2 ms + 4 * 1 ms
}

TEST_F(AtpWorkerTest, AnAnswerThatIsTooSoonForARepeatIsOfTheFirst) {
  submit(0, 4);
  AnyPacket sent = one();
  now_ += 10ms;
  receive(result(sent));  // from now on 10 ms + 4 * 5 ms
  submit(1, 4);
  sent = one();
  wait();
  static_cast<void>(take());
  now_ += 9ms;
  receive(result(sent));  // 39 ms, of which the time-out's 30 count: 12.5 ms + 4 * 8.75 ms
  submit(2, 4);
  EXPECT_EQ(now_ + 47'500us, worker_.next_timeout());
}

TEST_F(AtpWorkerTest, BehindAResultWhatWasSentLaterIsUnderWay) {
  submit(0, 16);
  const auto sent = take();
  now_ += 19ms;
  receive(result(sent[0]));
  const Duration timeout = 19ms + 4 * 9'500us;
  worker_.on_timer(now_ += 2ms, sink_);  // after 20 ms all would have been repeated
  EXPECT_TRUE(silent());
  now_ += timeout - 3ms;
  receive(result(sent[1]));
  worker_.on_timer(now_ += 2ms, sink_);
  EXPECT_TRUE(silent());
  wait();  // nothing more comes
  EXPECT_EQ((Sequences{2}), sequences(take()));
}

TEST_F(AtpWorkerTest, AGapBehindTheNewestResultIsALoss) {
  submit(0, 16);
  const auto sent = take();
  now_ += 19ms;
  receive(result(sent[2]));
  worker_.on_timer(now_ += 1ms, sink_);
  EXPECT_EQ((Sequences{0, 1}), sequences(take()));
}

// ---- probes at the end of a stream

// The first round trip varies by half of itself, so a probe waits for three. The packets' own time-outs go on.
TEST_F(AtpWorkerTest, ProbesWithItsLastPacketsWhenNothingComes) {
  submit(0, 16);
  const auto sent = take();
  now_ += 100us;
  receive(result(sent[0]));
  EXPECT_EQ(now_ + 300us, worker_.next_timeout());
  wait();
  const auto probes = take();
  EXPECT_EQ((Sequences{3, 2, 1}), sequences(probes));
  for (const AnyPacket& packet : probes) EXPECT_TRUE(packet.common.resend);
  EXPECT_EQ(now_ + 600us, worker_.next_timeout());
  receive(waiting(sent[1], ranks_of({2})));  // whose packet it is to repeat
  wait();
  const auto again = take();
  EXPECT_EQ((Sequences{3, 2}), sequences(again));
  for (const AnyPacket& packet : again) EXPECT_FALSE(packet.common.resend) << "it would empty the slot";
}

// Many are rather late than lost.
TEST_F(AtpWorkerTest, ProbesWithOneOfManyPackets) {
  WorkerConfig c = config();
  c.window = 8;
  start(c);
  submit(0, 32);
  const auto sent = take();
  now_ += 100us;
  for (std::size_t i = 0; i < 4; ++i) receive(result(sent[i]));
  wait();
  EXPECT_EQ((Sequences{7}), sequences(take()));
}

// Ranks may not have begun. The paper's ranks know no probes.
TEST_F(AtpWorkerTest, ProbesForNoOperationThatHasNoResultAndNotByThePapersRules) {
  for (const Rules rules : {Rules::netsum, Rules::paper}) {
    WorkerConfig c = config();
    c.rules = rules;
    start(c);
    submit(0, 8);
    const auto sent = take();
    now_ += 100us;
    receive(result(sent[0]));
    if (rules == Rules::netsum) receive(result(sent[1]));
    submit(1, 8);
    static_cast<void>(take());
    const Time last = now_;
    wait();
    EXPECT_LE(last + 1ms, now_) << "a time-out";
  }
}

// ---- the way past the switches

TEST_F(AtpWorkerTest, ASwitchThatIsSilentIsLeftOut) {
  submit(0, 100);
  const auto sent = take();
  for (int i = 0; i < 3; ++i) {  // at 20, 60 and 140 ms for chunk 0
    while (true) {
      wait();
      const auto packets = take();
      for (const AnyPacket& packet : packets) EXPECT_EQ(first_hop, packet.to);
      if (packets.front().common.sequence == 0) break;
    }
  }
  EXPECT_EQ(0U, counters().bypasses);
  while (counters().bypasses == 0) {
    static_cast<void>(take());
    wait();
  }
  const AnyPacket past = take().at(0);
  EXPECT_EQ(server, past.to);
  EXPECT_TRUE(past.common.direct);
  EXPECT_EQ(path, past.directions);
  const Time until = now_ + 200ms;
  receive(result(sent[0]), server);
  const AnyPacket next = one();
  EXPECT_EQ(4U, next.common.sequence);
  EXPECT_EQ(server, next.to);  // new ones too
  EXPECT_FALSE(next.common.resend);
  now_ = until;
  receive(result(sent[1]), server);
  EXPECT_EQ(server, one().to);  // nothing came from the switch
  for (std::size_t i = 2; i < 4; ++i) receive(result(sent[i]));
  const auto again = take();
  ASSERT_EQ(2U, again.size());
  for (const AnyPacket& packet : again) {
    EXPECT_EQ(first_hop, packet.to);  // it is tried again
    EXPECT_FALSE(packet.common.direct);
  }
}

TEST_F(AtpWorkerTest, AnAnswerOfAnyKindShowsThatSomebodyHears) {
  submit(0, 4);
  const AnyPacket sent = one();
  for (int i = 0; i < 10; ++i) {
    wait();
    EXPECT_EQ(first_hop, one().to);
    receive(waiting(sent, ranks_of({2})));
  }
  EXPECT_EQ(0U, counters().bypasses);
}

// It said "waiting", and then nothing any more: what waits counts as unanswered too.
TEST_F(AtpWorkerTest, ASwitchThatFallsSilentAfterAnAnswerIsLeftOut) {
  submit(0, 4);
  const AnyPacket sent = one();
  receive(waiting(sent, ranks_of({2})));
  for (int i = 0; i < 3; ++i) {
    wait();
    EXPECT_EQ(first_hop, one().to);
  }
  EXPECT_EQ(0U, counters().bypasses);
  for (int i = 0; i < 2; ++i) {
    wait();
    static_cast<void>(take());
  }
  EXPECT_EQ(1U, counters().bypasses);
}

// A switch above this rank's own is dead: the server asks this rank by itself, again and again, and nothing arrives there.
TEST_F(AtpWorkerTest, AskedInVainItGoesPastTheSwitches) {
  submit_floats(0, {1});
  const AnyPacket sent = one();
  const auto asked = [&](bool floats) {
    now_ += config().initial_timeout;
    receive(ask(sent, floats), server);
    return one().to;
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(first_hop, asked(false));
  EXPECT_EQ(0U, counters().bypasses);
  EXPECT_EQ(first_hop, asked(true));  // another question: the first was answered
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first_hop, asked(true));
  EXPECT_EQ(server, asked(true));
  EXPECT_EQ(1U, counters().bypasses);
}

// Where queues overflow, parts of a sum meet at the server in any order, and it asks with each that overlaps. What it asks
// for is on its way, and no switch is dead.
TEST_F(AtpWorkerTest, AskedAgainWithinARoundTripItStaysSilent) {
  submit(0, 8);
  const auto sent = take();
  now_ += 2ms;
  receive(result(sent[0]));
  take();
  for (int i = 0; i < 5; ++i) {
    receive(ask(sent[1]), server);
    EXPECT_EQ(1U, take().size());
    for (int j = 0; j < 3; ++j) receive(ask(sent[1]), server);
    EXPECT_TRUE(silent());
    now_ += 2ms;
  }
  EXPECT_EQ(5U, counters().asks);
  EXPECT_EQ(15U, counters().stale);
  EXPECT_EQ(0U, counters().bypasses);
}

// Until a result comes from the switch: the server sends them there all the time. Such a result shows that the switch knows
// the job, but not that this rank's packets arrive there: the time of the next bypass begins anew only after one that does.
TEST_F(AtpWorkerTest, ASwitchThatForgotTheJobIsLeftOutLongerEachTime) {
  WorkerConfig c = config();
  c.window = 16;
  start(c);
  submit(0, 400);
  std::deque<AnyPacket> sent;
  for (const AnyPacket& packet : take()) sent.push_back(packet);
  // A result of the oldest chunk from there: where the next chunk goes.
  const auto next_goes_to = [&](const Endpoint& from) {
    receive(result(sent.front()), from);
    sent.pop_front();
    sent.push_back(one());
    return sent.back().to;
  };
  receive(unknown_job());
  EXPECT_FALSE(worker_.failure());
  EXPECT_EQ(1U, counters().unknown_job);
  EXPECT_EQ(1U, counters().bypasses);
  receive(unknown_job());  // of the same silence
  EXPECT_EQ(1U, counters().bypasses);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(server, next_goes_to(server));  // from here on, results of chunks that went past it
  now_ += 200ms - 1ns;
  EXPECT_EQ(server, next_goes_to(first_hop));
  now_ += 1ns;
  EXPECT_EQ(server, next_goes_to(server));
  EXPECT_EQ(first_hop, next_goes_to(first_hop));
  receive(unknown_job());
  EXPECT_EQ(2U, counters().bypasses);
  now_ += 400ms - 1ns;
  EXPECT_EQ(server, next_goes_to(first_hop));
  now_ += 1ns;
  EXPECT_EQ(first_hop, next_goes_to(first_hop));
  for (int i = 0; i < 16; ++i) EXPECT_EQ(first_hop, next_goes_to(first_hop));  // it works again
  receive(unknown_job());
  EXPECT_EQ(3U, counters().bypasses);
  now_ += 200ms;  // as long as at first
  EXPECT_EQ(first_hop, next_goes_to(first_hop));
}

TEST_F(AtpWorkerTest, ABypassIsNoLongerThanTheLongest) {
  WorkerConfig c = config();
  c.longest_bypass = 300ms;
  start(c);
  submit(0, 400);
  std::deque<AnyPacket> sent;
  for (const AnyPacket& packet : take()) sent.push_back(packet);
  for (int i = 0; i < 5; ++i) {
    receive(unknown_job());
    for (int k = 0; k < 4; ++k) {
      receive(result(sent.front()), server);
      sent.pop_front();
      sent.push_back(one());
    }
    now_ += i == 0 ? 200ms : 300ms;
    receive(result(sent.front()));
    sent.pop_front();
    sent.push_back(one());
    EXPECT_EQ(first_hop, sent.back().to);
  }
  EXPECT_EQ(5U, counters().bypasses);
}

TEST_F(AtpWorkerTest, WithoutASwitchThereIsNothingToLeaveOut) {
  WorkerConfig c = config();
  c.first_hop = server;
  start(c);
  submit(0, 4);
  static_cast<void>(take());
  for (int i = 0; i < 8; ++i) {
    wait();
    const AnyPacket repeat = one();
    EXPECT_EQ(server, repeat.to);
    EXPECT_FALSE(repeat.common.direct);
  }
  EXPECT_EQ(0U, counters().bypasses);
}

// ---- what the server asks for

TEST_F(AtpWorkerTest, AnAskedChunkGoesPastEverySlotFromThenOn) {
  submit(0, 8);
  const auto sent = take();
  receive(ask(sent[1]), server);
  AnyPacket again = one();
  EXPECT_EQ(1U, again.common.sequence);
  EXPECT_TRUE(again.common.direct);
  EXPECT_FALSE(again.common.resend || again.common.floats);
  EXPECT_EQ(first_hop, again.to);  // its path is the same
  EXPECT_EQ(sent[1].values, again.values);
  EXPECT_EQ(1U, counters().asks);
  wait();
  for (const AnyPacket& packet : take()) EXPECT_EQ(packet.common.sequence == 1, packet.common.direct);
  receive(result(sent[1]));
  receive(ask(sent[1]));
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, counters().stale);
}

TEST_F(AtpWorkerTest, WhatIsAskedForBeforeItIsSentGoesPastEverySlot) {
  submit(0, 4);
  AnyPacket sent = one();
  AnyPacket later = sent;
  later.common.sequence = 2;
  receive(ask(later));
  later.common.sequence = 4;  // not within a window of what is under way
  receive(ask(later));
  EXPECT_EQ(1U, counters().asks);
  EXPECT_EQ(1U, counters().stale);
  submit(1, 12);
  const auto next = take();
  EXPECT_EQ((Sequences{1, 2, 3}), sequences(next));
  EXPECT_FALSE(next[0].common.direct);
  EXPECT_TRUE(next[1].common.direct);
  EXPECT_FALSE(next[2].common.direct);
  EXPECT_FALSE(next[1].common.resend);
  // It was of that one alone.
  receive(result(sent));
  for (const AnyPacket& packet : next) receive(result(packet));
  submit(2, 16);
  for (const AnyPacket& packet : take()) EXPECT_FALSE(packet.common.direct);
}

TEST_F(AtpWorkerTest, AskedForFloatsItSendsThemUnscaled) {
  submit_floats(0, {100, 2.5F});
  const AnyPacket sent = one();
  EXPECT_TRUE(sent.common.overflow);
  receive(ask(sent, true));
  AnyPacket floats = one();
  EXPECT_TRUE(floats.common.floats);
  EXPECT_TRUE(floats.common.direct);
  EXPECT_FALSE(floats.common.average || floats.common.overflow || floats.common.resend);
  EXPECT_EQ(std::bit_cast<std::int32_t>(2.5F), floats.values.at(1));
  EXPECT_EQ(1U, counters().floats_sent);
  receive(ask(sent));  // of the kind that it sends now
  EXPECT_TRUE(one().common.floats);
  Common c = answer(Type::parameter, sent);
  c.floats = true;
  receive(parameter_bytes_of(c, 0, {std::bit_cast<std::int32_t>(300.0F), std::bit_cast<std::int32_t>(7.5F)}));
  EXPECT_EQ((std::vector<float>{300, 7.5F}), floats_[0]);
  submit_floats(1, {1}, ReduceOp::avg);
  const AnyPacket average = one();
  EXPECT_FALSE(average.common.average);
  receive(ask(average, true));
  EXPECT_TRUE(one().common.average);
}

TEST_F(AtpWorkerTest, WhatHasNoFloatsIsNotAskedForThem) {
  submit(0, 4);
  const AnyPacket sent = one();
  receive(ask(sent, true));
  EXPECT_TRUE(silent());
  EXPECT_EQ(1U, counters().stale);
  Common c = answer(Type::parameter, sent);
  c.floats = true;
  receive(parameter_bytes_of(c, 0, Values(4)));
  EXPECT_EQ(1U, counters().malformed[static_cast<std::size_t>(wire::ParseError::field)]);
  EXPECT_FALSE(worker_.idle());
}

// ---- stragglers

TEST_F(AtpWorkerTest, AnAnswerThatNamesTheMissingQuietensAllButTheOldest) {
  submit(0, 8);
  const auto sent = take();
  now_ += 5ms;
  receive(waiting(sent[0], ranks_of({2})));
  receive(waiting(sent[1], ranks_of({2})));
  EXPECT_EQ(2U, counters().waiting);
  const auto stall = worker_.oldest_stall();
  ASSERT_TRUE(stall);
  EXPECT_EQ(0U, stall->operation);
  EXPECT_EQ(0U, stall->chunk);
  EXPECT_EQ(ranks_of({2}), stall->missing);
  EXPECT_EQ(now_, stall->told);
  const Time told = now_;
  std::size_t of_other = 0;
  while (worker_.next_timeout() <= told + 3s) {
    wait();
    for (const AnyPacket& packet : take()) {
      EXPECT_TRUE(packet.common.resend);
      of_other += packet.common.sequence;
    }
  }
  EXPECT_EQ(3U, of_other);        // one a held_timeout
  receive(waiting(sent[0], {}));  // from a switch whose sum went on: it knows of nobody
  EXPECT_EQ(ranks_of({2}), worker_.oldest_stall()->missing);
}

TEST_F(AtpWorkerTest, AResultWakesThoseThatWait) {
  submit(0, 12);
  const auto sent = take();
  for (const AnyPacket& packet : sent) receive(waiting(packet, ranks_of({2})));
  now_ += 10ms;
  receive(result(sent[0]));
  const Time woken = now_;
  wait();
  EXPECT_LE(now_, woken + 60ms);  // not a second
  EXPECT_EQ((Sequences{1}), sequences(take()));
  EXPECT_EQ(1U, worker_.oldest_stall()->chunk);
}

TEST_F(AtpWorkerTest, AnAnswerAboutNothingUnderWayIsStale) {
  submit(0, 4);
  AnyPacket other = one();
  other.common.sequence = 9;
  receive(waiting(other, ranks_of({2})));
  EXPECT_EQ(1U, counters().stale);
  EXPECT_TRUE(worker_.oldest_stall()->missing.empty());
}

// ---- congestion

TEST_F(AtpWorkerTest, MarksShrinkWhatIsUnderWay) {
  WorkerConfig c = config();
  c.congestion_control = true;
  c.packet_elements = 400;  // more than an MTU: the window grows by one packet at a time
  c.window = 8;
  start(c);
  submit(0, 40'000);
  const auto sent = take();
  ASSERT_EQ(8U, sent.size());
  Common marked = answer(Type::parameter, sent[0]);
  marked.ecn = true;
  receive(parameter_bytes_of(marked, sent[0].common.index, Values(400)));
  EXPECT_EQ(4U, worker_.congestion_window());
  receive(result(sent[1]));
  receive(result(sent[2]));
  EXPECT_EQ(1U, counters().marked);
  EXPECT_TRUE(silent());
  for (std::size_t i = 3; i < 8; ++i) receive(result(sent[i]));
  EXPECT_FALSE(silent());
}

TEST_F(AtpWorkerTest, AMarkOnAResultsWayDownCountsToo) {
  WorkerConfig c = config();
  c.congestion_control = true;
  start(c);
  submit(0, 400);
  receive(result(take()[0]), first_hop, true);
  EXPECT_EQ(2U, worker_.congestion_window());
  EXPECT_EQ(1U, counters().marked);
}

TEST_F(AtpWorkerTest, ALossShrinksTheWindowAndAFirstTimeOutDoesNot) {
  WorkerConfig c = config();
  c.congestion_control = true;
  start(c);
  submit(0, 400);
  wait();
  EXPECT_EQ(4U, worker_.congestion_window());  // it may be a straggler's doing
  wait();
  EXPECT_EQ(2U, worker_.congestion_window());

  c.window = 8;
  start(c);
  static_cast<void>(take());
  submit(0, 400);
  const auto sent = take();
  for (std::size_t i = 1; i < 4; ++i) receive(result(sent[i]));
  EXPECT_EQ(8U, worker_.congestion_window());
  wait();
  EXPECT_EQ(5U, worker_.congestion_window());
}

TEST_F(AtpWorkerTest, AStragglerIsNoCongestion) {
  WorkerConfig c = config();
  c.congestion_control = true;
  start(c);
  submit(0, 400);
  const auto sent = take();
  for (int i = 0; i < 4; ++i) {
    for (const AnyPacket& packet : sent) receive(waiting(packet, ranks_of({2})));
    wait();
  }
  EXPECT_EQ(4U, worker_.congestion_window());
}

// ---- who is believed

TEST_F(AtpWorkerTest, BelievesItsSwitchAndItsServerOfItsOwnJobAlone) {
  submit(0, 4);
  const AnyPacket sent = one();
  const Values untouched = ints_[0];
  receive(result(sent, 9), stranger);
  AnyPacket other = sent;
  const auto with = [&](auto change) {
    Common c = answer(Type::parameter, sent);
    change(c);
    return parameter_bytes_of(c, 0, Values(c.type == Type::parameter ? 4 : 0, 9));
  };
  receive(with([](Common& c) { ++c.job_epoch; }));
  receive(with([](Common& c) { ++c.rank_epoch; }));
  EXPECT_EQ(3U, counters().foreign);
  receive(with([](Common& c) { ++c.sequence; }));
  receive(with([](Common& c) { c.sequence = 4; }));  // the same place in the window
  EXPECT_EQ(2U, counters().stale);
  receive(with([](Common& c) { ++c.signature; }));
  receive(parameter_bytes_of(answer(Type::parameter, sent), 0, Values(3)));
  EXPECT_EQ(2U, counters().malformed[static_cast<std::size_t>(wire::ParseError::field)]);
  receive(with([](Common& c) { c.type = Type::done; }));
  Common up = answer(Type::gradient, sent);
  receive(gradient_bytes_of(up, path, Values(4)));
  EXPECT_EQ(2U, counters().malformed[static_cast<std::size_t>(wire::ParseError::type)]);
  Bytes damaged = result(sent, 9);
  damaged.back() ^= std::byte{1};
  receive(damaged);
  EXPECT_EQ(1U, counters().malformed[static_cast<std::size_t>(wire::ParseError::checksum)]);
  for (const Type type : {Type::parameter, Type::ask, Type::waiting, Type::mismatch}) {
    Common c = answer(type, sent);
    Bytes longer = parameter_bytes_of(c);
    longer.resize(longer.size() + 4);
    wire::atp::seal(longer);
    receive(longer);
  }
  EXPECT_EQ(4U, counters().malformed[static_cast<std::size_t>(wire::ParseError::length)]);
  EXPECT_EQ(untouched, ints_[0]);
  EXPECT_FALSE(worker_.failure());
  EXPECT_TRUE(silent());
  receive(result(sent, 9), server);
  EXPECT_EQ(Values(4, 9), ints_[0]);
}

TEST_F(AtpWorkerTest, AServerThatDoesNotKnowTheJobIsAFailure) {
  submit(3, 4);
  receive(unknown_job(job_epoch + 1), server);
  receive(unknown_job(job_epoch, own_epoch + 1), server);  // to another life of this rank
  receive(unknown_job(), stranger);
  EXPECT_EQ(3U, counters().foreign);
  EXPECT_FALSE(worker_.failure());
  receive(unknown_job(), server);
  ASSERT_TRUE(worker_.failure());
  EXPECT_EQ(WorkerFailure::Kind::unknown_job, worker_.failure()->kind);
  EXPECT_EQ(3U, worker_.failure()->operation);
}

TEST_F(AtpWorkerTest, AMismatchIsAFailureOfTheOperationThatItIsIn) {
  submit(3, 8);
  submit(4, 4);
  const auto sent = take();
  Bytes packet(wire::atp::mismatch_bytes);
  wire::atp::write_mismatch(packet, {answer(Type::mismatch, sent[2]), 11, 22, 1, 2});
  receive(packet, server);
  ASSERT_TRUE(worker_.failure());
  EXPECT_EQ(WorkerFailure::Kind::mismatch, worker_.failure()->kind);
  EXPECT_EQ(4U, worker_.failure()->operation);
  EXPECT_EQ(1U, worker_.failure()->first_rank);
  EXPECT_EQ(2U, worker_.failure()->second_rank);
  receive(unknown_job(), server);  // the first failure is the one that is told
  EXPECT_EQ(WorkerFailure::Kind::mismatch, worker_.failure()->kind);
  receive(packet, server);
  EXPECT_EQ(2U, counters().mismatch);
  wait();
  submit(5, 4);
  EXPECT_TRUE(silent());  // it sends nothing any more
  EXPECT_EQ(never, worker_.next_timeout());
}

// ---- state is a value

TEST_F(AtpWorkerTest, ACopyHasTheSameStateAndGoesItsOwnWay) {
  const auto state = [](const Worker& w) {
    Bytes bytes;
    w.append_state(bytes);
    return bytes;
  };
  const Bytes idle = state(worker_);
  AnyPacket later;
  later.common.sequence = 3;
  receive(ask(later));
  EXPECT_NE(idle, state(worker_));  // it will send that one direct
  start(config());
  EXPECT_EQ(idle, state(worker_));
  submit(0, 24);
  const auto sent = take();
  receive(result(sent[1]));
  receive(ask(sent[2]));
  static_cast<void>(take());
  Worker copy(worker_);
  Values other(24, -1);
  copy.move_tensor(0, other.data());
  EXPECT_EQ(state(worker_), state(copy));
  receive(result(sent[0], 5));
  EXPECT_NE(state(worker_), state(copy));
  EXPECT_EQ(-1, other[0]);
  EXPECT_EQ(5, ints_[0][0]);
  static_cast<void>(take());
  const Bytes before = state(copy);
  worker_ = copy;
  EXPECT_EQ(before, state(worker_));
  receive(result(sent[0], 6));
  EXPECT_EQ(6, other[0]);
  EXPECT_EQ((Values{-1, -1, -1, -1}), take().at(0).values);
}

}  // namespace
}  // namespace netsum::atp
