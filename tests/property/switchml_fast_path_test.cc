// A fast path equals its slow path, which is the specification: two switches, or two workers, one without the fast path, get
// the same batches, and what they send, hold and count is the same after each.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"
#include "support/recording_sink.h"
#include "support/virtual_cluster.h"
#include "support/virtual_network.h"
#include "wire/counter_values.h"

namespace netsum::testing {
namespace {

constexpr std::uint64_t epoch = 77;
constexpr std::uint32_t packet_elements = 256;

struct OnePath {
  OnePath(std::uint32_t ranks, std::uint32_t slots, bool fast)
      : memory(switchml::Switch::memory_bytes(packet_elements, slots, ranks) / sizeof(Line)) {
    switchml::SwitchJobConfig config{epoch, packet_elements, slots, {}};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) config.members.push_back({100 + rank, host(rank)});
    EXPECT_TRUE(machine.add_job(config, std::as_writable_bytes(std::span(memory))));
    machine.use_fast_path(fast);
  }
  static Endpoint host(std::uint32_t rank) { return endpoint_of(static_cast<std::uint8_t>(rank), 9); }

  void receive(std::span<const RxView> batch, Time now) {
    machine.on_packets(batch, now, sink);
    sink.flush();
  }
  [[nodiscard]] std::vector<std::byte> state() const {
    std::vector<std::byte> bytes;
    machine.append_state(bytes);
    return bytes;
  }
  [[nodiscard]] std::map<std::string, std::uint64_t> counts() const {
    std::map<std::string, std::uint64_t> counts;
    const auto take = [&](const auto& counters) {
      for (const CounterValue& counter : wire::counter_values(counters)) counts[counter.name] += counter.value;
    };
    take(*machine.job_counters(epoch));
    take(machine.counters());
    return counts;
  }
  [[nodiscard]] std::map<std::string, Endpoint> sources() const {
    std::map<std::string, Endpoint> sources;
    machine.drop_sources(epoch)->add_to(sources);
    return sources;
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory;
  switchml::Switch machine;
  RecordingSink sink;
};

// Packets of all ranks for the rounds that the slots are in, some of them late, early, repeated, damaged or wrong.
class Packets {
 public:
  Packets(std::uint64_t seed, std::uint32_t ranks, std::uint32_t slots)
      : random(seed), ranks_(ranks), rounds_(slots), seen_(slots, std::vector<bool>(ranks)) {}

  struct Packet {
    std::vector<std::byte> bytes;
    Endpoint source;
  };
  Packet next() {
    const auto slot = static_cast<std::uint16_t>(random.below(rounds_.size()));
    const auto rank = static_cast<std::uint16_t>(random.below(ranks_ + (random.below(60) == 0 ? 1 : 0)));
    bool right = rank < ranks_;
    const auto off = [&](std::uint64_t times) {  // from what is right, once in so many times
      const bool is_off = random.below(times) == 0;
      right &= !is_off;
      return is_off;
    };
    std::uint64_t round = rounds_[slot];
    if (off(20)) round += random.below(3);
    if (off(20)) round -= std::min<std::uint64_t>(round, random.below(3));
    wire::switchml::ChunkHeader header{.operation = round / 4,
                                       .chunk = static_cast<std::uint32_t>(round),
                                       .signature = 5,
                                       .slot = slot,
                                       .version = static_cast<std::uint8_t>(round % 2),
                                       .exponents = static_cast<std::uint8_t>(round % 8 == 7 ? 5 : 1),
                                       .elements = static_cast<std::uint16_t>(round % 8 == 3 ? 65 : packet_elements),
                                       .ahead_chunk = static_cast<std::uint32_t>(round + 1)};
    header.ahead_operation = static_cast<std::uint8_t>(round % 4 == 3);
    wire::switchml::Common common{wire::switchml::Type::contribution, rank, epoch, 100U + rank, random.below(4) != 0};
    if (off(300)) header.signature = 6;
    if (off(100)) header.elements = static_cast<std::uint16_t>(random.below(packet_elements + 9));
    if (off(100)) header.ahead_chunk += 1;
    if (off(100)) header.masks = header.elements != 0;
    if (off(100)) header.acknowledge_only = true;
    if (off(100)) header.op = ReduceOp::max;
    if (off(100)) header.exponents = 0;
    if (header.exponents == 0) header.ahead_operation = wire::switchml::no_ahead;
    if (off(100)) common.rank_epoch += 1;
    if (off(100)) header.slot = static_cast<std::uint16_t>(rounds_.size());
    if (off(100)) common.type = wire::switchml::Type::exponent_contribution;
    if (common.type == wire::switchml::Type::exponent_contribution) header.elements = 0;
    if (header.elements == 0 || header.op != ReduceOp::sum) header.masks = false;
    Packet packet{std::vector<std::byte>(wire::switchml::chunk_packet_bytes(header)), OnePath::host(off(100) ? 9 : rank)};
    for (std::byte& byte : packet.bytes) byte = static_cast<std::byte>(random.next());
    for (std::size_t i = 0; i < header.exponents; ++i)
      packet.bytes[wire::switchml::chunk_header_bytes + i] = static_cast<std::byte>(random.below(off(50) ? 256 : 255));
    wire::switchml::write_chunk_header(packet.bytes, common, header);
    const auto damage = [&] {
      const std::size_t most = random.below(2) == 0 ? wire::switchml::chunk_header_bytes + 8 : packet.bytes.size();
      packet.bytes[random.below(std::min(most, packet.bytes.size()))] ^= static_cast<std::byte>(1U << random.below(8));
    };
    if (off(50)) damage();
    wire::switchml::seal(packet.bytes);
    if (off(20)) damage();
    if (off(200)) packet.bytes.resize(random.below(packet.bytes.size() + 1));

    // The slot's next round comes some time after this one has all packets.
    if (right) seen_[slot][rank] = true;
    if (std::find(seen_[slot].begin(), seen_[slot].end(), false) == seen_[slot].end() && random.below(2) == 0) {
      ++rounds_[slot];
      seen_[slot].assign(ranks_, false);
    }
    return packet;
  }

  Random random;

 private:
  std::uint32_t ranks_;
  std::vector<std::uint64_t> rounds_;
  std::vector<std::vector<bool>> seen_;
};

TEST(SwitchmlFastPath, DoesWhatTheSlowPathDoes) {
  std::uint64_t fast_ones = 0, contributions = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const auto ranks = static_cast<std::uint32_t>(2 + seed % 7), slots = static_cast<std::uint32_t>(1 + seed % 5);
    OnePath fast(ranks, slots, true), slow(ranks, slots, false);
    Packets packets(seed, ranks, slots);
    Time now{std::chrono::seconds(1)};
    for (int batches = 0; batches < 60; ++batches) {
      std::vector<Packets::Packet> batch;
      for (std::uint64_t i = packets.random.below(12); i > 0; --i) batch.push_back(packets.next());
      std::vector<RxView> views;
      for (const auto& packet : batch) views.push_back({packet.bytes, packet.source});
      now += std::chrono::microseconds(packets.random.below(400));
      fast.receive(views, now);
      slow.receive(views, now);
      ASSERT_EQ(slow.sink.take(), fast.sink.take()) << seed;
      ASSERT_EQ(slow.state(), fast.state()) << seed;
      ASSERT_EQ(slow.counts(), fast.counts()) << seed;
      ASSERT_EQ(slow.sources(), fast.sources()) << seed;
    }
    EXPECT_EQ(0U, slow.machine.added_fast());
    fast_ones += fast.machine.added_fast();
    contributions += fast.machine.job_counters(epoch)->contributions;
  }
  EXPECT_GT(fast_ones * 3, contributions);
}

// A worker of two, and what its switch answers: mostly what the contributions ask for.
class WorkerPath {
 public:
  WorkerPath(std::uint64_t seed, bool fast)
      : worker_({.job_epoch = epoch,
                 .world_size = 2,
                 .rank_epoch = 100,
                 .folded_epochs = folded_epochs,
                 .packet_elements = packet_elements,
                 .slots = static_cast<std::uint32_t>(1 + seed % 5),
                 .aggregator = OnePath::host(0),
                 .checksums = seed % 3 != 0}),
        random_(seed) {
    worker_.use_fast_path(fast);
  }

  void submit(std::uint64_t number, Time now) {
    stream::Operation operation;
    operation.number = number;
    operation.elements = random_.below(3000);
    operation.dtype = random_.below(4) == 0 ? DType::int32 : DType::float32;
    if (random_.below(8) == 0) operation.collective = stream::Collective::barrier;
    if (random_.below(4) == 0) operation.collective = stream::Collective::broadcast;
    if (operation.collective == stream::Collective::broadcast) operation.root = static_cast<std::uint32_t>(random_.below(2));
    if (operation.collective == stream::Collective::barrier) operation.elements = 0;
    auto& tensor = tensors_.emplace_back(operation.elements);
    for (float& value : tensor) value = static_cast<float>(random_.below(1000)) - 500;
    if (random_.below(8) == 0 && !tensor.empty()) tensor.back() = INFINITY;
    operation.data = tensor.data();
    EXPECT_TRUE(worker_.submit(operation, now, sink));
  }
  void receive(std::span<const RxView> batch, Time now) {
    worker_.on_packets(batch, now, sink);
    worker_.on_timer(now, sink);
    sink.flush();
    static_cast<void>(worker_.take_completed());
  }
  [[nodiscard]] std::vector<std::byte> state() const {
    std::vector<std::byte> bytes;
    worker_.append_state(bytes);
    for (const auto& tensor : tensors_) {
      const auto values = std::as_bytes(std::span(tensor));
      bytes.insert(bytes.end(), values.begin(), values.end());
    }
    return bytes;
  }
  [[nodiscard]] std::map<std::string, std::uint64_t> counts() const {
    std::map<std::string, std::uint64_t> counts;
    for (const CounterValue& counter : wire::counter_values(worker_.counters())) counts[counter.name] += counter.value;
    return counts;
  }
  [[nodiscard]] const switchml::Worker& worker() const { return worker_; }

  static constexpr std::uint32_t folded_epochs = 4711;
  RecordingSink sink;

 private:
  switchml::Worker worker_;
  Random random_;
  std::deque<std::vector<float>> tensors_;
};

// The result of a contribution, or something like it.
Packets::Packet answer_to(std::span<const std::byte> contribution, Random& random) {
  using wire::switchml::Type;
  wire::switchml::Common common;
  wire::switchml::ChunkPacket chunk;
  EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_common(contribution, common));
  EXPECT_EQ(wire::ParseError::none, wire::switchml::parse_chunk(contribution, common, chunk));
  const auto off = [&](std::uint64_t times) { return random.below(times) == 0; };
  wire::switchml::ChunkHeader header = chunk.header;
  common.sender = 0;
  common.rank_epoch = WorkerPath::folded_epochs;
  common.type = common.type == Type::contribution ? Type::result : Type::exponent_result;
  if (common.type == Type::result && header.elements == 0) {  // others have sent values, or nobody
    header.elements = static_cast<std::uint16_t>(off(2) ? 0 : random.below(packet_elements));
  }
  if (header.acknowledge_only && off(2)) {
    common.type = Type::acknowledgement;
    header.elements = 0;
  }
  header.acknowledge_only = header.masks = false;
  if (off(10) || (off(4) && header.exponents != 0)) {  // a rank has not named what is ahead
    header.exponents = 0;
    header.ahead_chunk = 0;
    header.ahead_operation = wire::switchml::no_ahead;
  }
  if (off(10) && header.elements != 0 && header.dtype == DType::int32) header.masks = true;
  if (off(50)) common.checked = !common.checked;
  if (off(100)) common.type = static_cast<Type>(1 + random.below(4));
  if (off(100)) common.rank_epoch += 1;
  if (off(100)) common.job_epoch += 1;
  if (off(100)) header.signature += 1;
  if (off(100)) header.elements = static_cast<std::uint16_t>(random.below(packet_elements + 9));
  if (off(100)) header.ahead_chunk += 1;
  if (off(100)) header.chunk += 1;
  if (off(100)) header.operation += 1;
  if (off(100)) header.op = ReduceOp::max;
  if (off(100)) header.version ^= 1;
  if (off(100)) header.slot = static_cast<std::uint16_t>(random.below(8));
  if (header.elements == 0 || header.op != ReduceOp::sum) header.masks = false;
  Packets::Packet packet{std::vector<std::byte>(wire::switchml::chunk_packet_bytes(header)),
                         OnePath::host(off(100) ? 9 : 0)};
  for (std::byte& byte : packet.bytes) byte = static_cast<std::byte>(random.next());
  for (std::size_t i = 0; i < header.exponents; ++i) {
    packet.bytes[wire::switchml::chunk_header_bytes + i] = static_cast<std::byte>(random.below(off(50) ? 256 : 255));
  }
  wire::switchml::write_chunk_header(packet.bytes, common, header);
  wire::switchml::seal(packet.bytes);
  if (off(30)) {
    const std::size_t most = off(2) ? wire::switchml::chunk_header_bytes + 8 : packet.bytes.size();
    packet.bytes[random.below(std::min(most, packet.bytes.size()))] ^= static_cast<std::byte>(1U << random.below(8));
    if (off(2)) wire::switchml::seal(packet.bytes);
  }
  if (off(200)) packet.bytes.resize(random.below(packet.bytes.size() + 1));
  return packet;
}

TEST(SwitchmlFastPath, AWorkersDoesWhatItsSlowPathDoes) {
  std::uint64_t fast_ones = 0, results = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    WorkerPath fast(seed, true), slow(seed, false);
    Random random(seed);
    std::vector<Datagram> asked;  // the newest contributions
    Time now{std::chrono::seconds(1)};
    std::uint64_t submitted = 0;
    for (int batches = 0; batches < 60; ++batches) {
      if (submitted < 6 && random.below(6) == 0) {
        fast.submit(submitted, now);
        slow.submit(submitted++, now);
      }
      std::vector<Packets::Packet> batch;
      for (std::uint64_t i = asked.empty() ? 0 : random.below(6); i > 0; --i) {
        batch.push_back(answer_to(asked[random.below(asked.size())].bytes, random));
        if (random.below(30) == 0) batch.push_back(batch.back());
      }
      std::vector<RxView> views;
      for (const auto& packet : batch) views.push_back({packet.bytes, packet.source});
      now += std::chrono::microseconds(random.below(400));
      fast.receive(views, now);
      slow.receive(views, now);
      const std::vector<Datagram> sent = fast.sink.take();
      ASSERT_EQ(slow.sink.take(), sent) << seed;
      ASSERT_EQ(slow.counts(), fast.counts()) << seed;
      ASSERT_EQ(slow.state(), fast.state()) << seed;
      asked.insert(asked.end(), sent.begin(), sent.end());
      asked.erase(asked.begin(), asked.end() - static_cast<std::ptrdiff_t>(std::min<std::size_t>(asked.size(), 8)));
    }
    EXPECT_EQ(0U, slow.worker().fast_results());
    fast_ones += fast.worker().fast_results();
    results += fast.worker().counters().results;
  }
  EXPECT_GT(fast_ones * 3, results);
}

}  // namespace
}  // namespace netsum::testing
