// NetReduce's accelerator in memory: packets of n ranks in trains, as a port hands them over; each is read, checked,
// buffered, added and sent on with the sum. Beside it, over the same bytes in the same run, what no accelerator can do
// without: a CRC-32 of each packet that comes and of each that goes, and n - 1 additions of floats. `ratio` is how much
// longer all of it takes.
//
//   accelerator_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true

#include <benchmark/benchmark.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/crc32.h"
#include "protocol/netreduce/accelerator.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::netreduce {
namespace {

using wire::roce::Opcode;

constexpr std::uint32_t mtu = 1024, message_packets = 64, window = 2, messages = 4, train = 16;

// Of this thread, so that others on a busy machine do not count.
std::chrono::nanoseconds cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

// What a port's ring of buffers is: a few hundred frames that are used again and again.
class Frames final : public Sink {
 public:
  std::span<std::byte> datagram(const Endpoint&, std::size_t bytes) override {
    const auto out = std::as_writable_bytes(std::span(slots_[next_].lines)).first(bytes);
    next_ = (next_ + 1) % slots_.size();
    last = out;
    return out;
  }
  void multicast(std::span<const std::byte>, std::span<const Endpoint>) override {}
  void flush() override {}
  std::span<const std::byte> last;

 private:
  struct Slot {
    CacheLine lines[18];
  };
  std::vector<Slot> slots_ = std::vector<Slot>(256);
  std::size_t next_ = 0;
};

struct Ring {
  explicit Ring(std::uint32_t members) {
    config.members = members;
    config.window = window;
    config.message_packets = message_packets;
    config.mtu = mtu;
    for (std::uint32_t rank = 0; rank < members; ++rank) {
      Connection connection;
      connection.source = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, static_cast<std::uint8_t>(rank)};
      connection.destination = connection.source;
      connection.destination[15] = static_cast<std::uint8_t>((rank + 1) % members);
      connection.destination_qp = 17;
      config.connections.push_back(connection);
    }
    memory.resize(Accelerator::memory_bytes(config) / sizeof(CacheLine));
    for (std::uint32_t begin = 0; begin < messages * message_packets; begin += train) {
      for (std::uint32_t rank = 0; rank < members; ++rank) {
        for (std::uint32_t number = begin; number < begin + train; ++number) frames.push_back(frame(rank, number));
      }
    }
  }

  [[nodiscard]] std::vector<std::byte> frame(std::uint32_t rank, std::uint32_t number) const {
    const std::uint32_t at = number % message_packets;
    const bool first = at == 0, last = at + 1 == message_packets;
    std::vector<std::byte> payload(mtu);
    for (std::size_t i = 0; i < mtu; i += 4) store_le(payload.data() + i, std::bit_cast<std::uint32_t>(1.0F));
    if (first) {
      wire::netreduce::InaHeader header;
      header.rank = rank;
      header.message = number / message_packets;
      header.packets = message_packets;
      wire::netreduce::write_header(config.layout, payload, header);
    } else {
      store_le(payload.data(), std::uint64_t{0});
    }
    wire::roce::Packet packet;
    packet.ip.source = config.connections[rank].source;
    packet.ip.destination = config.connections[rank].destination;
    packet.bth.destination_qp = 17;
    packet.bth.opcode = first ? Opcode::rc_write_first : last ? Opcode::rc_write_last_immediate : Opcode::rc_write_middle;
    packet.bth.psn = number;
    packet.payload = payload;
    std::vector<std::byte> bytes(wire::roce::packet_bytes(packet));
    wire::roce::write(bytes, packet);
    return bytes;
  }

  RingConfig config;
  std::vector<CacheLine> memory;
  std::vector<std::vector<std::byte>> frames;  // in the order in which they come
};

// Additions and checksums alone; returns something of all of it.
std::uint32_t bound(const Ring& ring, std::vector<float>& sum) {
  std::uint32_t crcs = 0;
  const std::uint32_t members = ring.config.members;
  for (std::size_t begin = 0; begin < ring.frames.size(); begin += std::size_t{train} * members) {
    for (std::uint32_t at = 0; at < train; ++at) {
      for (std::uint32_t rank = 0; rank < members; ++rank) {
        const auto& frame = ring.frames[begin + std::size_t{rank} * train + at];
        crcs += crc32(frame);
        const std::byte* const payload = frame.data() + (frame.size() - mtu - wire::roce::icrc_bytes);
        for (std::size_t i = 0; i < mtu / 4; ++i) {
          float value = 0;
          std::memcpy(&value, payload + 4 * i, 4);
          sum[i] = rank == 0 ? value : sum[i] + value;
        }
      }
      for (std::uint32_t rank = 0; rank < members; ++rank) {
        crcs += crc32(ring.frames[begin + std::size_t{rank} * train + at]);
      }
      benchmark::ClobberMemory();
    }
  }
  return crcs;
}

void accelerator(benchmark::State& state) {
  Ring ring(static_cast<std::uint32_t>(state.range(0)));
  ring.config.order = state.range(1) != 0 ? Order::arrival : Order::ring;
  Frames frames;
  std::vector<float> sum(mtu / 4);
  const Endpoint egress{{}, 1};
  std::chrono::nanoseconds all{}, least{};
  std::uint64_t packets = 0;
  for (auto _ : state) {
    Accelerator core;
    if (!core.add_ring(ring.config, std::as_writable_bytes(std::span(ring.memory)))) state.SkipWithError("no ring");
    const auto begin = cpu_time();
    for (const auto& frame : ring.frames) {
      wire::roce::Packet packet;
      if (wire::roce::parse(frame, packet) != wire::ParseError::none) continue;
      benchmark::DoNotOptimize(core.on_packet(packet, frame, 0, egress, {}, frames));
    }
    const auto middle = cpu_time();
    benchmark::DoNotOptimize(bound(ring, sum));
    const auto end = cpu_time();
    all += middle - begin;
    least += end - middle;
    state.SetIterationTime(std::chrono::duration<double>(middle - begin).count());
    packets += ring.frames.size();
    if (core.ring_counters(0)->results != ring.frames.size()) state.SkipWithError("not every packet left");
  }
  if (frames.last.empty()) return state.SkipWithError("nothing left");
  float value = 0;
  std::memcpy(&value, frames.last.data() + frames.last.size() - 8, 4);
  if (value != static_cast<float>(ring.config.members)) state.SkipWithError("another sum");
  state.SetItemsProcessed(static_cast<std::int64_t>(packets));
  state.SetBytesProcessed(static_cast<std::int64_t>(packets * mtu));
  state.counters["ratio"] = std::chrono::duration<double>(all) / std::chrono::duration<double>(least);
}

BENCHMARK(accelerator)->ArgNames({"ranks", "arrival"})->ArgsProduct({{4, 8}, {0, 1}})->UseManualTime();

}  // namespace
}  // namespace netsum::netreduce

BENCHMARK_MAIN();
