// Two queue pairs in memory: one writes messages, the other takes and acknowledges them. Each packet is written, its ICRC
// computed, read, checked and copied to its place. Beside it the bound: the copies and checksums alone.
//
//   queue_pair_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/crc32.h"
#include "protocol/roce/queue_pair.h"
#include "wire/roce.h"

namespace netsum::roce {
namespace {

constexpr std::uint32_t message_packets = 64, window_messages = 4;

// A ring of frames, as a port has one.
class Ring final : public PacketSink {
 public:
  explicit Ring(std::size_t packets) : frames_(packets * 8192) { ends_.reserve(packets); }

  std::span<std::byte> packet(std::size_t bytes) override {
    const std::size_t begin = ends_.empty() ? 0 : (ends_.back() + 63) / 64 * 64;
    ends_.push_back(begin + bytes);
    return std::span(frames_).subspan(begin, bytes);
  }

  // All to `pair`; returns how many.
  std::size_t drain(QueuePair& pair, Time now) {
    std::size_t begin = 0;
    for (const std::size_t end : ends_) {
      const auto bytes = std::span<const std::byte>(frames_).subspan(begin, end - begin);
      wire::roce::Packet packet;
      if (wire::roce::parse(bytes, packet) == wire::ParseError::none && wire::roce::icrc_valid(bytes))
        pair.on_packet(packet, now);
      begin = (end + 63) / 64 * 64;
    }
    const std::size_t packets = ends_.size();
    ends_.clear();
    return packets;
  }

 private:
  std::vector<std::byte> frames_;
  std::vector<std::size_t> ends_;
};

QueuePairConfig config(std::uint8_t self, std::uint32_t mtu, std::span<std::byte> memory) {
  QueuePairConfig c;
  c.local = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, self};
  c.remote = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, static_cast<std::uint8_t>(3 - self)};
  c.mtu = mtu;
  c.max_messages = window_messages;
  c.memory = memory;
  return c;
}

void pair_in_memory(benchmark::State& state) {
  const auto mtu = static_cast<std::uint32_t>(state.range(0));
  const std::size_t message_bytes = std::size_t{mtu} * message_packets;
  std::vector<std::byte> memory(message_bytes * window_messages), message(message_bytes, std::byte{0x5a});
  QueuePair writer(config(1, mtu, {})), reader(config(2, mtu, memory));
  Ring forth(message_packets * window_messages), back(16);
  Time now{};
  std::uint64_t posted = 0, packets = 0;
  for (auto _ : state) {
    while (writer.post_write(message, posted % window_messages * message_bytes, 0, static_cast<std::uint32_t>(posted)))
      ++posted;
    now += std::chrono::microseconds(10);
    writer.send(now, forth);
    packets += forth.drain(reader, now);
    benchmark::DoNotOptimize(reader.take_received().size());
    reader.send(now, back);
    back.drain(writer, now);
  }
  if (writer.completed() != posted || writer.counters().retransmissions != 0) state.SkipWithError("not everything arrived");
  if (!std::equal(message.begin(), message.end(), memory.begin())) state.SkipWithError("other bytes arrived");
  state.SetItemsProcessed(static_cast<std::int64_t>(packets));
  state.SetBytesProcessed(static_cast<std::int64_t>(packets * mtu));
}

void copies_and_checksums(benchmark::State& state) {
  const std::size_t mtu = static_cast<std::uint32_t>(state.range(0));
  const std::size_t window = std::size_t{message_packets} * window_messages;
  std::vector<std::byte> message(mtu * message_packets, std::byte{0x5a}), frames(window * (mtu + 64)), memory(mtu * window);
  std::uint64_t packets = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < window; ++i) {
      const auto frame = std::span(frames).subspan(i * (mtu + 64), mtu);
      std::memcpy(frame.data(), message.data() + i % message_packets * mtu, mtu);
      benchmark::DoNotOptimize(crc32(frame));
    }
    for (std::size_t i = 0; i < window; ++i) {
      const auto frame = std::span(frames).subspan(i * (mtu + 64), mtu);
      benchmark::DoNotOptimize(crc32(frame));
      std::memcpy(memory.data() + i * mtu, frame.data(), mtu);
    }
    benchmark::ClobberMemory();
    packets += window;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(packets));
  state.SetBytesProcessed(static_cast<std::int64_t>(packets * mtu));
}

BENCHMARK(copies_and_checksums)->Arg(1024)->Arg(4096);
BENCHMARK(pair_in_memory)->Arg(1024)->Arg(4096);

}  // namespace
}  // namespace netsum::roce

BENCHMARK_MAIN();
