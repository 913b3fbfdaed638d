// The switch's protocol core beside a plain vector add over the same bytes: what identity, bitmap, checksum and multicast
// bookkeeping cost. The bound is the add.
//
//   switch_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true

#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "base/crc32c.h"
#include "kernels/kernels.h"
#include "micro/null_sink.h"
#include "protocol/switchml/switch.h"
#include "wire/switchml.h"

namespace netsum {
namespace {

constexpr std::uint32_t packet_elements = 256;
constexpr std::uint32_t ranks = 8;
constexpr std::uint64_t job_epoch = 1;

Endpoint endpoint_of_rank(std::uint32_t rank) {
  Endpoint endpoint;
  endpoint.address[15] = static_cast<std::uint8_t>(rank);
  endpoint.port = 1;
  return endpoint;
}

struct alignas(64) Line {
  std::byte bytes[64];
};

wire::switchml::ChunkHeader header_of(std::uint32_t slot, std::uint64_t round) {
  return {.operation = round,
          .slot = static_cast<std::uint16_t>(slot),
          .version = static_cast<std::uint8_t>(round % 2),
          .exponents = 1,
          .elements = packet_elements,
          .ahead_operation = 1};
}

// Trains as they lie in a receive buffer: one rank's packets of all slots, one after the other.
void set_round(std::vector<std::vector<std::byte>>& trains, std::uint32_t slots, std::uint64_t round, bool checked = true) {
  const std::size_t bytes = wire::switchml::chunk_packet_bytes(header_of(0, round));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      const std::span<std::byte> packet = std::span(trains[rank]).subspan(slot * bytes, bytes);
      wire::switchml::write_chunk_header(
          packet, {wire::switchml::Type::contribution, static_cast<std::uint8_t>(rank), job_epoch, rank, checked},
          header_of(slot, round));
      wire::switchml::seal(packet);
    }
  }
}

std::size_t train_bytes(std::uint32_t slots) {
  return wire::switchml::chunk_packet_bytes(header_of(0, 0)) * slots;
}

// Between hosts packets have a checksum, on one host they need none. Without the fast path it is the slow one for all
// packets.
template <bool checked, bool fast = true>
void switch_core(benchmark::State& state) {
  const auto slots = static_cast<std::uint32_t>(state.range(0));
  std::vector<Line> memory(switchml::Switch::memory_bytes(packet_elements, slots, ranks) / sizeof(Line));
  switchml::SwitchJobConfig config{job_epoch, packet_elements, slots, {}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) config.members.push_back({rank, endpoint_of_rank(rank)});
  switchml::Switch core;
  core.use_fast_path(fast);
  if (!core.add_job(config, std::as_writable_bytes(std::span(memory)))) return state.SkipWithError("add_job");

  const std::size_t bytes = train_bytes(slots) / slots;
  std::vector<std::vector<std::byte>> trains(ranks, std::vector<std::byte>(train_bytes(slots)));
  std::vector<std::vector<RxView>> views(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      views[rank].push_back({std::span(trains[rank]).subspan(slot * bytes, bytes), endpoint_of_rank(rank)});
    }
  }
  NullSink sink;
  std::uint64_t round = 0;
  for (auto _ : state) {
    state.PauseTiming();
    set_round(trains, slots, round++, checked);
    state.ResumeTiming();
    for (const auto& train : views) core.on_packets(train, Time(std::chrono::nanoseconds(round)), sink);
  }
  if (core.job_counters(job_epoch)->chunks != round * slots) state.SkipWithError("a chunk was not completed");
  state.SetItemsProcessed(state.iterations() * ranks * slots);
}

// Payload by payload out of the same trains into the same slot memory: the first copied, the others added. Each packet's
// CRC32C is computed besides: `before` the addition, or in the `same` pass.
enum class Checksum { none, before, same };
template <Checksum checksum>
void plain_add(benchmark::State& state) {
  const auto slots = static_cast<std::uint32_t>(state.range(0));
  const std::size_t bytes = train_bytes(slots) / slots;
  std::vector<Line> memory(switchml::Switch::memory_bytes(packet_elements, slots, ranks) / sizeof(Line));
  const std::span<std::byte> sums = std::as_writable_bytes(std::span(memory));
  const std::size_t slot_bytes = switchml::Switch::memory_bytes(packet_elements, slots, 0) / (2 * slots);
  std::vector<std::vector<std::byte>> trains(ranks, std::vector<std::byte>(train_bytes(slots)));
  std::uint64_t round = 0;
  for (auto _ : state) {
    state.PauseTiming();
    set_round(trains, slots, round);
    state.ResumeTiming();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t slot = 0; slot < slots; ++slot) {
        const auto packet = std::span(trains[rank]).subspan(slot * bytes, bytes);
        std::byte* const sum = sums.data() + (slot * 2 + round % 2) * slot_bytes;
        const std::byte* const payload = packet.data() + wire::switchml::chunk_header_bytes + 4;
        if (checksum == Checksum::before || (checksum == Checksum::same && rank == 0)) {
          benchmark::DoNotOptimize(crc32c(packet));
        }
        if (rank == 0) {
          std::memcpy(sum, payload, packet_elements * 4);
        } else if (checksum == Checksum::same) {
          benchmark::DoNotOptimize(kernels::add_int32_and_crc32c(sum, packet, packet_elements, 0));
        } else {
          kernels::add_int32(sum, payload, packet_elements);
        }
      }
    }
    ++round;
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * ranks * slots);
}

// L2: 64 slots and 8 trains are 0.7 MB; 1024 slots leave it.
BENCHMARK(plain_add<Checksum::none>)->Name("plain_add")->Arg(64)->Arg(1024);
BENCHMARK(plain_add<Checksum::before>)->Name("checksum_and_add")->Arg(64)->Arg(1024);
BENCHMARK(plain_add<Checksum::same>)->Name("checksum_in_add")->Arg(64)->Arg(1024);
BENCHMARK(switch_core<true>)->Name("switch_core")->Arg(64)->Arg(1024);
BENCHMARK(switch_core<false>)->Name("switch_core_unchecked")->Arg(64)->Arg(1024);
BENCHMARK(switch_core<true, false>)->Name("switch_core_slow")->Arg(64)->Arg(1024);
BENCHMARK(switch_core<false, false>)->Name("switch_core_unchecked_slow")->Arg(64)->Arg(1024);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
