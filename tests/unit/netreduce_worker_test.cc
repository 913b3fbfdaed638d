// NetReduce's worker by itself: what it posts, byte by byte, when, and which messages it believes.
#include "protocol/netreduce/worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "base/bytes.h"
#include "support/pads.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {
namespace {

using stream::Collective;
using stream::Operation;
using wire::netreduce::InaHeader;
using wire::netreduce::Seal;
using Bytes = std::vector<std::byte>;

struct Posted {
  Bytes bytes;
  std::span<const std::byte> lent;  // must stay as it is until it is acknowledged
  std::uint64_t offset = 0;
  std::uint32_t immediate = 0;
  [[nodiscard]] InaHeader header() const {
    const auto header = wire::netreduce::read_header(wire::netreduce::netsum_layout, bytes);
    EXPECT_TRUE(header.has_value());
    return header.value_or(InaHeader{});
  }
};

// Has room for so many messages, and acknowledges those that a test says: what a worker does about either is tested here
// alone.
class Outbox final : public MessageSink {
 public:
  bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) override {
    if (posted.size() == room) return false;
    posted.push_back({{message.begin(), message.end()}, message, offset, immediate});
    return true;
  }
  [[nodiscard]] std::uint64_t acknowledged() const override { return acks; }

  std::vector<Posted> posted;
  std::size_t room = 1'000'000;
  std::uint64_t acks = 0;
};

Operation all_reduce(void* data, std::uint64_t elements, DType dtype = DType::float32, std::uint64_t number = 0) {
  Operation operation;
  operation.number = number;
  operation.dtype = dtype;
  operation.elements = elements;
  operation.data = data;
  return operation;
}

class NetreduceWorker : public ::testing::Test {
 protected:
  static constexpr std::size_t first_values = 256 - 40, more_values = 256 - 8;  // bytes of a packet
  static constexpr std::size_t whole_values = first_values + 2 * more_values;   // of a message of three

  void SetUp() override { start({}); }

  // With rank 1 of 3 unless said otherwise, and packets small enough to be counted by hand.
  void start(const std::function<void(WorkerConfig&)>& change) {
    config_ = {};
    config_.incarnation = 0x0102030405060708;
    config_.ring = 2;
    config_.rank = 1;
    config_.world_size = 3;
    config_.window = 2;
    config_.message_packets = 3;
    config_.mtu = 256;
    if (change) change(config_);
    send_memory_.assign(Worker::send_bytes(config_), std::byte{0xaa});
    receive_memory_.assign(Worker::receive_bytes(config_), std::byte{0xbb});
    config_.send_memory = send_memory_;
    config_.receive_memory = receive_memory_;
    worker_ = std::make_unique<Worker>(config_);
    outbox_ = {};
    received_ = 0;
  }

  void submit(const Operation& operation) {
    ASSERT_TRUE(worker_->submit(operation));
    worker_->send(outbox_);
  }

  [[nodiscard]] Seal seal(std::uint64_t message, std::uint32_t packet) const {
    return {config_.incarnation, config_.ring, message, packet, config_.world_size};
  }
  // As it comes back: sealed.
  [[nodiscard]] Bytes sealed(Bytes message, std::uint64_t number) const {
    for (std::uint32_t packet = 0; packet * std::size_t{config_.mtu} < message.size(); ++packet) {
      wire::netreduce::write_seal(std::span(message).subspan(packet * std::size_t{config_.mtu}), seal(number, packet));
    }
    return message;
  }
  // The next message from the predecessor.
  void receive(const Bytes& message) {
    const std::size_t at = received_ % (2 * config_.window) * Worker::message_bytes(config_);
    std::copy(message.begin(), message.end(), receive_memory_.begin() + static_cast<std::ptrdiff_t>(at));
    worker_->on_message(at, static_cast<std::uint32_t>(message.size()), static_cast<std::uint32_t>(received_));
    ++received_;
  }
  // What was posted as message `number` comes back as if everybody had sent the same.
  void echo(std::uint64_t number) { receive(sealed(outbox_.posted[number].bytes, number)); }

  // Results and acknowledgements of everything, until nothing more is posted.
  void echo_all() {
    while (received_ < outbox_.posted.size()) {
      echo(received_);
      outbox_.acks = received_;
      worker_->send(outbox_);
    }
  }

  WorkerConfig config_;
  Bytes send_memory_, receive_memory_;
  std::unique_ptr<Worker> worker_;
  Outbox outbox_;
  std::uint64_t received_ = 0;
};

// ---- what it posts

// With memory and a tensor of its own, it knows nothing of what comes to the other.
TEST_F(NetreduceWorker, ACopyIsAWorkerOfItsOwn) {
  float tensor[] = {1}, other[] = {7};
  submit(all_reduce(tensor, 1));
  const auto state = [](const Worker& worker) {
    Bytes bytes;
    worker.append_state(bytes);
    return bytes;
  };
  const Bytes before = state(*worker_);
  Worker copy(*worker_);
  Bytes send_memory = send_memory_, receive_memory = receive_memory_;
  copy.move_memory(send_memory, receive_memory);
  copy.move_tensor(0, other);
  EXPECT_EQ(before, state(copy));
  echo_all();
  EXPECT_TRUE(worker_->idle());
  EXPECT_NE(before, state(*worker_));
  EXPECT_EQ(before, state(copy));

  const Bytes message = sealed(outbox_.posted[0].bytes, 0);
  std::fill(receive_memory_.begin(), receive_memory_.end(), std::byte{0});
  std::copy(message.begin(), message.end(), receive_memory.begin());
  tensor[0] = 5;
  copy.on_message(0, static_cast<std::uint32_t>(message.size()), 0);
  EXPECT_TRUE(copy.idle());
  EXPECT_EQ(1, other[0]);
  EXPECT_EQ(5, tensor[0]);
  EXPECT_EQ(state(*worker_), state(copy));
}

// docs/protocol-netreduce.md, offset by offset: a change of the format must be a change of this test.
TEST_F(NetreduceWorker, AMessageIsWhatTheSpecificationSays) {
  const float values[] = {1, -2, 0.5F};
  float tensor[3];
  std::copy(std::begin(values), std::end(values), tensor);
  submit(all_reduce(tensor, 3, DType::float32, 5));
  ASSERT_EQ(1U, outbox_.posted.size());
  const Posted& message = outbox_.posted[0];
  const std::uint8_t expected[] = {
      0,    0,    0,    0,    0, 0, 0, 0,     // seal: the accelerator's
      'N',  'S',  'n',  'r',                  // InetTag
      0,                                      // float32
      0,                                      // flags
      1,    0,                                // MsgLen
      2,    0,    0,    0,                    // RingID
      1,    0,    0,    0,                    // Rank
      0,    0,    0,    0,    0, 0, 0, 0,     // MsgID
      0xe7, 0x13, 0x51, 0xaa,                 // signature, computed by another program
      0,    0,    0,    0,                    // reserved
      0,    0,    0x80, 0x3f, 0, 0, 0, 0xc0,  // 1, -2
      0,    0,    0,    0x3f,                 // 0.5
  };
  Bytes wanted(sizeof expected);
  std::memcpy(wanted.data(), expected, sizeof expected);
  EXPECT_EQ(wanted, message.bytes);
  EXPECT_EQ(0U, message.offset);
  EXPECT_EQ(0U, message.immediate);
  EXPECT_EQ(1U, worker_->messages_sent());
}

// Each packet begins with a seal, the first one with the header: the values are around them.
TEST_F(NetreduceWorker, ValuesLieAroundHeaderAndSeals) {
  // Two whole messages, and one that ends in its second packet.
  Bytes tensor(2 * whole_values + first_values + 12);
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<std::byte>(1 + i % 251);
  start([](WorkerConfig& c) { c.window = 3; });
  submit(all_reduce(tensor.data(), tensor.size() / 4, DType::int32));
  ASSERT_EQ(3U, outbox_.posted.size());
  std::size_t at = 0;
  for (std::uint64_t m = 0; m < 3; ++m) {
    const Posted& message = outbox_.posted[m];
    const std::uint32_t packets = m < 2 ? 3 : 2;
    EXPECT_EQ(m < 2 ? 768U : 256U + 8 + 12, message.bytes.size());
    EXPECT_EQ(packets, message.header().packets);
    EXPECT_EQ(m, message.header().message);
    EXPECT_EQ(m, message.immediate);
    EXPECT_EQ(m * 768, message.offset);
    for (std::uint32_t packet = 0; packet < packets; ++packet) {
      const std::size_t begin = packet * 256, end = std::min<std::size_t>(begin + 256, message.bytes.size());
      EXPECT_EQ(0U, wire::netreduce::read_seal(std::span(message.bytes).subspan(begin)));
      for (std::size_t i = begin + (packet == 0 ? 40 : 8); i < end; ++i) {
        ASSERT_EQ(tensor[at++], message.bytes[i]) << "byte " << i << " of message " << m;
      }
    }
  }
  EXPECT_EQ(tensor.size(), at);
}

TEST_F(NetreduceWorker, MessagesGoToTheSuccessorsMemoryInTurn) {
  Bytes tensor(9 * whole_values);
  submit(all_reduce(tensor.data(), tensor.size() / 4));
  echo_all();
  ASSERT_EQ(9U, outbox_.posted.size());
  for (std::uint64_t m = 0; m < 9; ++m) {
    EXPECT_EQ(m % 4 * 768, outbox_.posted[m].offset);
    EXPECT_EQ(m, outbox_.posted[m].immediate);
    EXPECT_EQ(m, outbox_.posted[m].header().message);
  }
  EXPECT_EQ(std::vector<std::uint64_t>{0}, worker_->take_completed());
}

TEST_F(NetreduceWorker, TheHeaderNamesTypeAndAverage) {
  Bytes tensor(12);
  struct Case {
    Collective collective;
    DType dtype;
    ReduceOp op;
    DType on_wire;
    bool average;
  };
  for (const Case& c : {Case{Collective::all_reduce, DType::float32, ReduceOp::avg, DType::float32, true},
                        Case{Collective::all_reduce, DType::int32, ReduceOp::sum, DType::int32, false},
                        Case{Collective::all_reduce, DType::float16, ReduceOp::avg, DType::float16, true},
                        Case{Collective::all_reduce, DType::bfloat16, ReduceOp::sum, DType::bfloat16, false},
                        Case{Collective::broadcast, DType::float32, ReduceOp::avg, DType::int32, false},
                        Case{Collective::barrier, DType::float32, ReduceOp::avg, DType::int32, false}}) {
    start({});
    Operation operation = all_reduce(tensor.data(), c.collective == Collective::barrier ? 0 : 3, c.dtype);
    operation.collective = c.collective;
    operation.op = c.op;
    submit(operation);
    ASSERT_EQ(1U, outbox_.posted.size());
    EXPECT_EQ(c.on_wire, outbox_.posted[0].header().dtype);
    EXPECT_EQ(c.average, outbox_.posted[0].header().average);
  }
}

// Ranks that issue different calls, or the same ones in another order, are told apart by each message's signature.
TEST_F(NetreduceWorker, EveryPartOfACallIsInTheSignature) {
  Bytes tensor(4 * whole_values);
  const auto signatures = [&](const std::function<void(Operation&)>& change,
                              const std::function<void(WorkerConfig&)>& with) {
    start([&](WorkerConfig& c) {
      c.window = 8;
      if (with) with(c);
    });
    Operation operation = all_reduce(tensor.data(), 2 * whole_values / 4);
    change(operation);
    submit(operation);
    std::vector<std::uint32_t> list;
    for (const Posted& message : outbox_.posted) list.push_back(message.header().signature);
    return list;
  };
  const auto base = signatures([](Operation&) {}, {});
  ASSERT_EQ(2U, base.size());
  EXPECT_NE(base[0], base[1]) << "messages of one call";
  const std::vector<std::function<void(Operation&)>> changes = {
      [](Operation& o) { o.number = 1; },
      [](Operation& o) { o.op = ReduceOp::avg; },
      [](Operation& o) { o.dtype = DType::int32; },
      [](Operation& o) { o.elements -= 1; },
      [](Operation& o) { o.tag = 1; },
      [](Operation& o) { o.collective = Collective::broadcast; },
      [](Operation& o) { o.collective = Collective::broadcast, o.root = 1; },
      [](Operation& o) { o.collective = Collective::barrier, o.elements = 0; },
  };
  std::set<std::uint32_t> first = {base[0]};
  for (const auto& change : changes) EXPECT_TRUE(first.insert(signatures(change, {}).at(0)).second);
  // The same on all ranks, wherever their tensors are.
  EXPECT_EQ(base, signatures([&](Operation& o) { o.data = tensor.data() + 4; }, [](WorkerConfig& c) { c.rank = 2; }));
}

// A message that was posted is read again whenever it is repeated.
TEST_F(NetreduceWorker, WhatIsPostedStaysAsItIsUntilItIsAcknowledged) {
  Bytes tensor(8 * whole_values);
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<std::byte>(i);
  submit(all_reduce(tensor.data(), tensor.size() / 4, DType::int32));
  for (std::uint64_t m = 0; m < 8; ++m) {
    Bytes twice = sealed(outbox_.posted[m].bytes, m);
    for (std::size_t i = 40; i < 256; ++i) twice[i] = std::byte{0x77};
    receive(twice);  // the tensor changes; what others may still need does not
    for (std::uint64_t n = m; n < outbox_.posted.size(); ++n) {
      EXPECT_TRUE(
          std::equal(outbox_.posted[n].bytes.begin(), outbox_.posted[n].bytes.end(), outbox_.posted[n].lent.begin()));
    }
    outbox_.acks = m + 1;
    worker_->send(outbox_);
  }
}

// ---- the window

TEST_F(NetreduceWorker, TheWindowWaitsForResultsAndForAcknowledgements) {
  Bytes tensor(8 * whole_values);
  submit(all_reduce(tensor.data(), tensor.size() / 4));
  EXPECT_EQ(2U, outbox_.posted.size());
  outbox_.acks = 2;  // no result yet
  worker_->send(outbox_);
  EXPECT_EQ(2U, outbox_.posted.size());
  echo(0);
  worker_->send(outbox_);
  EXPECT_EQ(3U, outbox_.posted.size());
  echo(1);
  echo(2);
  worker_->send(outbox_);
  EXPECT_EQ(4U, outbox_.posted.size()) << "message 2 is not acknowledged";
  outbox_.acks = 3;
  worker_->send(outbox_);
  EXPECT_EQ(5U, outbox_.posted.size());
  worker_->send(outbox_);
  EXPECT_EQ(5U, outbox_.posted.size());
  echo_all();
  EXPECT_EQ(8U, outbox_.posted.size());
  EXPECT_TRUE(worker_->idle());
  EXPECT_EQ(8U, worker_->counters().messages_received);
}

TEST_F(NetreduceWorker, WhatCannotBePostedIsPostedLater) {
  Bytes tensor(3 * whole_values);
  outbox_.room = 1;
  submit(all_reduce(tensor.data(), tensor.size() / 4));
  EXPECT_EQ(1U, outbox_.posted.size());
  EXPECT_EQ(1U, worker_->messages_sent());
  outbox_.room = 100;
  worker_->send(outbox_);
  ASSERT_EQ(2U, outbox_.posted.size());
  EXPECT_EQ(1U, outbox_.posted[1].header().message);
  echo_all();
  EXPECT_EQ(3U, outbox_.posted.size());
}

TEST_F(NetreduceWorker, TakesAsManyOperationsAsItMay) {
  start([](WorkerConfig& c) { c.operations = 2; });
  float value = 0;
  EXPECT_TRUE(worker_->submit(all_reduce(&value, 1, DType::float32, 0)));
  EXPECT_TRUE(worker_->submit(all_reduce(&value, 1, DType::float32, 1)));
  EXPECT_FALSE(worker_->submit(all_reduce(&value, 1, DType::float32, 2)));
  worker_->send(outbox_);
  EXPECT_EQ(2U, outbox_.posted.size()) << "the window is over all operations";
  echo(0);
  EXPECT_TRUE(worker_->submit(all_reduce(&value, 1, DType::float32, 2)));
}

// ---- collectives

TEST_F(NetreduceWorker, EveryCollectiveTypeAndLengthComesBackWhole) {
  const std::size_t whole_elements = whole_values / 4;
  for (const DType dtype : {DType::float32, DType::int32, DType::float16, DType::bfloat16}) {
    for (const std::size_t elements :
         {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{53}, std::size_t{54}, std::size_t{55},
          whole_elements - 1, whole_elements, whole_elements + 1, 2 * whole_elements + 1, 5 * whole_elements + 17}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(elements));
      start({});
      const std::size_t bytes = elements * bytes_of(dtype);
      Bytes tensor(bytes + 8, std::byte{0xee});
      for (std::size_t i = 0; i < bytes; ++i) tensor[i] = static_cast<std::byte>(i * 7 + i / 256);
      const Bytes before = tensor;
      submit(all_reduce(tensor.data(), elements, dtype));
      // What was sent is all that is needed; what is received is written over anything.
      std::fill_n(tensor.begin(), config_.window * whole_values < bytes ? 0 : bytes, std::byte{0x11});
      echo_all();
      EXPECT_EQ(before, tensor);
      EXPECT_EQ(std::vector<std::uint64_t>{0}, worker_->take_completed());
      EXPECT_TRUE(worker_->idle());
      EXPECT_EQ(std::max<std::size_t>(1, (bytes + whole_values - 1) / whole_values), outbox_.posted.size());
    }
  }
}

TEST_F(NetreduceWorker, ABarrierAndAnEmptyTensorAreAHeader) {
  for (const Collective collective : {Collective::barrier, Collective::all_reduce, Collective::broadcast}) {
    start({});
    Operation operation = all_reduce(nullptr, 0);
    operation.collective = collective;
    submit(operation);
    ASSERT_EQ(1U, outbox_.posted.size());
    EXPECT_EQ(40U, outbox_.posted[0].bytes.size());
    EXPECT_EQ(1U, outbox_.posted[0].header().packets);
    EXPECT_FALSE(worker_->idle());
    echo_all();
    EXPECT_EQ(std::vector<std::uint64_t>{0}, worker_->take_completed());
  }
}

// As int32 sums to which all but the root add 0; a last word may be partly outside of the caller's bytes.
TEST_F(NetreduceWorker, ABroadcastIsTheRootsBytesAndZeros) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{3}, std::size_t{4}, first_values - 1, first_values,
                                  first_values + 1, whole_values - 3, whole_values, 2 * whole_values + 5}) {
    SCOPED_TRACE(bytes);
    Bytes source(bytes);
    for (std::size_t i = 0; i < bytes; ++i) source[i] = static_cast<std::byte>(1 + i % 250);
    const auto run = [&](std::uint32_t root, Bytes& tensor) {
      start([](WorkerConfig& c) { c.window = 4; });
      Operation operation = all_reduce(tensor.data(), bytes);
      operation.collective = Collective::broadcast;
      operation.root = root;
      submit(operation);
      Bytes sent;  // values alone
      for (const Posted& message : outbox_.posted) {
        for (std::size_t i = 0; i < message.bytes.size(); ++i) {
          if (i % 256 >= (i < 256 ? 40U : 8U)) sent.push_back(message.bytes[i]);
        }
      }
      return sent;
    };
    Bytes tensor = source;
    tensor.resize(bytes + 4, std::byte{0xee});  // what is behind the caller's bytes is nobody's business
    const Bytes guarded = tensor;
    Bytes wanted = source;
    wanted.resize((bytes + 3) / 4 * 4);
    EXPECT_EQ(wanted, run(1, tensor)) << "the root";
    echo_all();
    EXPECT_EQ(guarded, tensor);

    Bytes other(bytes + 4, std::byte{0xee});
    EXPECT_EQ(Bytes(wanted.size()), run(0, other)) << "another rank sends zeros";
    std::size_t at = 0;
    for (std::uint64_t m = 0; m < outbox_.posted.size(); ++m) {  // and receives the root's
      Bytes message = outbox_.posted[m].bytes;
      for (std::size_t i = 0; i < message.size(); ++i) {
        if (i % 256 >= (i < 256 ? 40U : 8U)) message[i] = wanted[at++];
      }
      receive(sealed(message, m));
    }
    EXPECT_EQ(guarded, other);
  }
}

TEST_F(NetreduceWorker, OperationsFollowEachOther) {
  std::vector<Bytes> tensors;
  std::vector<Bytes> before;
  start([](WorkerConfig& c) { c.window = 4; });
  for (std::uint64_t number = 0; number < 6; ++number) {
    tensors.emplace_back(number % 2 == 0 ? 3 * whole_values - 8 : 4);
    for (std::size_t i = 0; i < tensors.back().size(); ++i) tensors.back()[i] = static_cast<std::byte>(i + number);
  }
  before = tensors;
  for (std::uint64_t number = 0; number < 6; ++number) {
    submit(all_reduce(tensors[number].data(), tensors[number].size() / 4, DType::int32, number));
  }
  EXPECT_EQ(4U, outbox_.posted.size());
  EXPECT_EQ(0U, worker_->oldest_stall()->operation);
  EXPECT_EQ(0U, worker_->oldest_stall()->chunk);
  echo(0);
  EXPECT_EQ(1U, worker_->oldest_stall()->chunk);
  echo_all();
  EXPECT_EQ(before, tensors);
  EXPECT_EQ((std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5}), worker_->take_completed());
  EXPECT_TRUE(worker_->take_completed().empty());
  EXPECT_FALSE(worker_->oldest_stall().has_value());
  EXPECT_EQ(12U, outbox_.posted.size());
}

// ---- lanes

TEST_F(NetreduceWorker, LanesShareTheMessagesOfEveryOperation) {
  for (const std::uint32_t lanes : {1U, 2U, 3U, 5U}) {
    SCOPED_TRACE(lanes);
    // Which messages of each operation were sent on which lane, found by the values that they hold.
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t> lane_of;
    const std::vector<std::size_t> sizes = {1, 1, 1, 1, 7, 2, 0, 11};  // messages; 0: a barrier
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      start([&](WorkerConfig& c) {
        c.lane = lane;
        c.lanes = lanes;
        c.ring = lane;
        c.window = 64;
      });
      std::vector<std::vector<std::uint32_t>> tensors;
      for (std::uint64_t number = 0; number < sizes.size(); ++number) {
        auto& tensor = tensors.emplace_back(sizes[number] * whole_values / 4);
        for (std::size_t i = 0; i < tensor.size(); ++i) {
          tensor[i] = static_cast<std::uint32_t>(number * 1000 + i / (whole_values / 4));
        }
        Operation operation = all_reduce(tensor.data(), tensor.size(), DType::int32, number);
        if (sizes[number] == 0) operation.collective = Collective::barrier;
        submit(operation);
      }
      std::uint32_t barriers = 0;
      for (std::uint64_t m = 0; m < outbox_.posted.size(); ++m) {
        const Posted& message = outbox_.posted[m];
        EXPECT_EQ(m, message.header().message) << "a ring's stream has no holes";
        if (message.bytes.size() == 40) {
          EXPECT_TRUE(lane_of.emplace(std::pair{6U, barriers++}, lane).second);
          continue;
        }
        const auto value = load_le<std::uint32_t>(message.bytes.data() + 40);
        EXPECT_TRUE(lane_of.emplace(std::pair{value / 1000, value % 1000}, lane).second) << "sent once";
      }
      echo_all();
      std::vector<std::uint64_t> all(sizes.size());
      std::iota(all.begin(), all.end(), 0U);
      EXPECT_EQ(all, worker_->take_completed()) << "also those without a message on this lane";
      EXPECT_TRUE(worker_->idle());
      for (std::uint64_t number = 0; number < sizes.size(); ++number) {
        for (std::size_t i = 0; i < tensors[number].size(); ++i) {
          ASSERT_EQ(number * 1000 + i / (whole_values / 4), tensors[number][i]);
        }
      }
    }
    EXPECT_EQ(25U, lane_of.size()) << "every message on one lane";
    // Small operations that follow each other use different lanes.
    for (std::uint64_t number = 0; number < 3; ++number) {
      EXPECT_EQ(lanes == 1, (lane_of.at({number, 0}) == lane_of.at({number + 1, 0})));
    }
  }
}

// An operation that ends while a later one of this lane is under way is told in order.
TEST_F(NetreduceWorker, AnOperationWithoutAMessageHereEndsInItsTurn) {
  start([](WorkerConfig& c) { c.lanes = 2; });  // lane 0: messages of even operations
  std::uint32_t values[3] = {};
  submit(all_reduce(&values[0], 1, DType::int32, 0));
  submit(all_reduce(&values[1], 1, DType::int32, 1));
  EXPECT_TRUE(worker_->take_completed().empty()) << "operation 0 is before it";
  submit(all_reduce(&values[2], 1, DType::int32, 2));
  EXPECT_EQ(2U, outbox_.posted.size());
  echo(0);
  EXPECT_EQ((std::vector<std::uint64_t>{0, 1}), worker_->take_completed());
  echo(1);
  EXPECT_EQ(std::vector<std::uint64_t>{2}, worker_->take_completed());
  submit(all_reduce(&values[1], 1, DType::int32, 3));
  EXPECT_EQ(std::vector<std::uint64_t>{3}, worker_->take_completed()) << "nothing is before it";
}

// ---- what it believes

class NetreduceSeals : public NetreduceWorker {
 protected:
  // Three messages of three packets; what comes in place of the second is given to `change`.
  void refuse(const std::function<void(Bytes&)>& change, WorkerFailure::Kind kind, std::uint32_t packet) {
    Bytes tensor(3 * whole_values + 8, std::byte{0x33});
    start({});
    submit(all_reduce(tensor.data(), 3 * whole_values / 4, DType::int32, 9));
    echo(0);
    outbox_.acks = 1;
    const Bytes before = tensor;
    Bytes message = sealed(outbox_.posted[1].bytes, 1);
    for (const std::size_t i : {std::size_t{100}, std::size_t{300}, std::size_t{600}}) message[i] = std::byte{0x44};
    change(message);
    receive(message);
    EXPECT_EQ(before, tensor) << "nothing of a refused message gets to the tensor";
    ASSERT_TRUE(worker_->failure().has_value());
    EXPECT_EQ(kind, worker_->failure()->kind);
    EXPECT_EQ(9U, worker_->failure()->operation);
    EXPECT_EQ(1U, worker_->failure()->message);
    EXPECT_EQ(packet, worker_->failure()->packet);
    EXPECT_TRUE(worker_->take_completed().empty());
    EXPECT_EQ(1U, worker_->counters().messages_received);
    // It is over: nothing is sent any more, and nothing taken.
    outbox_.acks = 2;
    worker_->send(outbox_);
    EXPECT_EQ(2U, outbox_.posted.size());
    --received_;
    receive(sealed(outbox_.posted[1].bytes, 1));
    EXPECT_EQ(before, tensor);
    EXPECT_TRUE(worker_->take_completed().empty());
  }
};

TEST_F(NetreduceSeals, RawPacketsAreRefusedWhereverTheyAre) {
  for (std::uint32_t packet = 0; packet < 3; ++packet) {
    refuse([&](Bytes& m) { store_le(m.data() + 256 * packet, std::uint64_t{0}); }, WorkerFailure::Kind::unsealed, packet);
  }
  EXPECT_EQ("packet 2 of message 1 arrived unsummed", to_string(*worker_->failure()));
}

TEST_F(NetreduceSeals, ASumOfSomethingElseIsRefused) {
  const std::vector<std::function<void(Seal&)>> changes = {
      [](Seal& s) { s.incarnation += 1; },    // of a former life
      [](Seal& s) { s.ring += 1; },           // of another lane
      [](Seal& s) { s.message -= 1; },        // of the message before
      [](Seal& s) { s.message += 4; },        // of the one in this place two windows later
      [](Seal& s) { s.packet ^= 1; },         // of another packet
      [](Seal& s) { s.contributions -= 1; },  // without a rank
      [](Seal& s) { s.contributions += 1; },
  };
  for (const auto& change : changes) {
    for (std::uint32_t packet = 0; packet < 3; ++packet) {
      refuse(
          [&](Bytes& m) {
            Seal other = seal(1, packet);
            change(other);
            wire::netreduce::write_seal(std::span(m).subspan(256 * packet), other);
          },
          WorkerFailure::Kind::wrong_seal, packet);
    }
  }
  EXPECT_EQ("packet 2 of message 1 arrived with the sum of another packet", to_string(*worker_->failure()));
}

TEST_F(NetreduceSeals, OneBitIsEnough) {
  for (std::size_t bit = 0; bit < 64; ++bit) {
    refuse([&](Bytes& m) { m[512 + bit / 8] ^= std::byte{1} << (bit % 8); }, WorkerFailure::Kind::wrong_seal, 2);
  }
}

TEST_F(NetreduceSeals, WhatIsNotTheNextMessageIsRefused) {
  struct Arrival {
    std::uint64_t offset;
    std::uint32_t bytes, immediate;
  };
  Bytes tensor(2 * whole_values, std::byte{0x33});
  for (const Arrival& arrival : {Arrival{0, 768, 1}, Arrival{1536, 768, 1}, Arrival{769, 768, 1}, Arrival{768, 767, 1},
                                 Arrival{768, 768 + 1, 1}, Arrival{768, 40, 1}, Arrival{768, 0, 1}, Arrival{768, 768, 0},
                                 Arrival{768, 768, 2}, Arrival{~std::uint64_t{0}, 768, 1}}) {
    start({});
    submit(all_reduce(tensor.data(), 2 * whole_values / 4, DType::int32));
    echo(0);
    const Bytes before = tensor;
    const Bytes message = sealed(outbox_.posted[1].bytes, 1);
    std::copy(message.begin(), message.end(), receive_memory_.begin() + 768);
    worker_->on_message(arrival.offset, arrival.bytes, arrival.immediate);
    ASSERT_TRUE(worker_->failure().has_value());
    EXPECT_EQ(WorkerFailure::Kind::unexpected, worker_->failure()->kind);
    EXPECT_EQ("message 1 does not belong to this ring", to_string(*worker_->failure()));
    EXPECT_EQ(before, tensor);
  }
}

// All ranks' contributions are in a result: it cannot be there before one's own was sent.
TEST_F(NetreduceSeals, AResultOfWhatWasNotSentIsRefused) {
  Bytes tensor(3 * whole_values);
  submit(all_reduce(tensor.data(), tensor.size() / 4));
  echo(0);
  echo(1);  // and nothing is sent meanwhile
  EXPECT_FALSE(worker_->failure().has_value());
  Bytes message = outbox_.posted[1].bytes;
  receive(sealed(message, 2));
  ASSERT_TRUE(worker_->failure().has_value());
  EXPECT_EQ(WorkerFailure::Kind::unexpected, worker_->failure()->kind);

  start({});
  receive(sealed(Bytes(40), 0));  // without an operation
  ASSERT_TRUE(worker_->failure().has_value());
  EXPECT_EQ(WorkerFailure::Kind::unexpected, worker_->failure()->kind);
}

// Contributions of zeros are pads.
TEST(PrivateWorker, UsesNoPadTwice) {
  struct Posts final : MessageSink {
    bool post(std::span<const std::byte> message, std::uint64_t, std::uint32_t) override {
      messages.emplace_back(message.begin(), message.end());
      return true;
    }
    [[nodiscard]] std::uint64_t acknowledged() const override { return messages.size(); }
    std::vector<std::vector<std::byte>> messages;
  } sink;
  WorkerConfig config;
  config.rank = 1;
  config.world_size = 3;
  config.window = 64;
  config.message_packets = 4;
  config.mtu = 256;
  config.pads = netsum::testing::pads_of(3)[1];
  std::vector<std::byte> send(Worker::send_bytes(config)), receive(Worker::receive_bytes(config));
  config.send_memory = send;
  config.receive_memory = receive;
  Worker worker(config);
  std::vector<std::int32_t> zeros(3000);
  for (std::uint64_t number = 0; number < 2; ++number) {
    ASSERT_TRUE(worker.submit({.number = number, .dtype = DType::int32, .elements = zeros.size(), .data = zeros.data()}));
  }
  worker.send(sink);
  std::set<std::array<std::uint64_t, 2>> pads;
  std::size_t blocks = 0;
  for (const auto& message : sink.messages) {
    for (std::size_t packet = 0; packet < message.size(); packet += config.mtu) {
      const std::size_t end = std::min(message.size(), packet + config.mtu);
      for (std::size_t at = packet + (packet == 0 ? 40 : 8); at + 16 <= end; at += 16, ++blocks) {
        std::array<std::uint64_t, 2> block{};
        std::memcpy(block.data(), message.data() + at, sizeof block);
        pads.insert(block);
      }
    }
  }
  EXPECT_GT(blocks, 1300U);
  EXPECT_EQ(blocks, pads.size());
}

}  // namespace
}  // namespace netsum::netreduce
