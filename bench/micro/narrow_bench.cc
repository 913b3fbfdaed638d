// Sums of 16-bit packets at a switch: what may become of bfloat16 and float16 there, per contribution of 512 elements, which
// are as many bytes as 256 int32.
//
//   add_int32_256     the same bytes as int32: the yardstick
//   block_fixed       bfloat16 as int16 in block fixed point, added in place (the worker quantizes: quantize_block below)
//   bfloat16_in_order buffered, and added in rank order when the last is there
//   float16_buffered  likewise, exactly
//   float16_in_place  added to 64-bit accumulators as they come, exactly
//
// Slots that are filled one rank after the other, as trains fill them: 64 slots.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/kernels.h"

namespace netsum {
namespace {

constexpr std::size_t elements = 512, packet_bytes = elements * 2, slots = 64;

using Bytes = std::vector<std::byte>;

std::vector<Bytes> trains_of(std::size_t ranks) {
  std::vector<Bytes> trains(ranks, Bytes(slots * packet_bytes));
  std::uint32_t word = 1;
  for (Bytes& train : trains) {
    for (std::size_t i = 0; i < train.size(); i += 2) {
      word = word * 1664525U + 1013904223U;
      const auto half = static_cast<std::uint16_t>((word >> 16 & 0x87ffU) | 0x3000U);  // moderate in either type
      std::memcpy(train.data() + i, &half, 2);
    }
  }
  return trains;
}

// take(slot, rank, packet) for every contribution, then finish(slot) for the complete ones.
template <class Take, class Finish>
void run(benchmark::State& state, Take take, Finish finish) {
  const auto ranks = static_cast<std::size_t>(state.range(0));
  const std::vector<Bytes> trains = trains_of(ranks);
  for (auto _ : state) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t slot = 0; slot < slots; ++slot) {
        take(slot, rank, trains[rank].data() + slot * packet_bytes);
        if (rank + 1 == ranks) finish(slot);
      }
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ranks * slots));
}

void add_int32_256(benchmark::State& state) {
  Bytes sums(slots * packet_bytes);
  run(
      state,
      [&](std::size_t slot, std::size_t rank, const std::byte* packet) {
        if (rank == 0)
          std::memcpy(sums.data() + slot * packet_bytes, packet, packet_bytes);
        else
          kernels::add_int32(sums.data() + slot * packet_bytes, packet, elements / 2);
      },
      [](std::size_t) {});
}

void block_fixed(benchmark::State& state) {
  Bytes sums(slots * packet_bytes);
  run(
      state,
      [&](std::size_t slot, std::size_t rank, const std::byte* packet) {
        if (rank == 0)
          std::memcpy(sums.data() + slot * packet_bytes, packet, packet_bytes);
        else
          kernels::add_int16(sums.data() + slot * packet_bytes, packet, elements);
      },
      [](std::size_t) {});
}

template <DType dtype>
void buffered(benchmark::State& state) {
  const auto ranks = static_cast<std::size_t>(state.range(0));
  Bytes gathered(slots * ranks * packet_bytes), sums(slots * packet_bytes);
  std::vector<const std::byte*> sources(ranks);
  run(
      state,
      [&](std::size_t slot, std::size_t rank, const std::byte* packet) {
        std::memcpy(gathered.data() + (slot * ranks + rank) * packet_bytes, packet, packet_bytes);
      },
      [&](std::size_t slot) {
        for (std::size_t rank = 0; rank < ranks; ++rank)
          sources[rank] = gathered.data() + (slot * ranks + rank) * packet_bytes;
        std::byte* const out = sums.data() + slot * packet_bytes;
        kernels::sum_gathered(dtype, out, sources, elements);
      });
}

void float16_in_place(benchmark::State& state) {
  std::vector<double> sums(slots * elements);
  const std::vector<double> not_integers(elements, std::numeric_limits<double>::quiet_NaN());
  Bytes results(slots * packet_bytes);
  std::vector<float> floats(elements);
  std::vector<std::uint16_t> halves(elements);
  run(
      state,
      [&](std::size_t slot, std::size_t rank, const std::byte* packet) {
        double* const sum = sums.data() + slot * elements;
        std::memcpy(halves.data(), packet, packet_bytes);
        kernels::from_float16(floats.data(), halves.data(), elements);
        if (rank == 0)
          std::transform(floats.begin(), floats.end(), sum, [](float value) { return static_cast<double>(value); });
        else
          kernels::add_floats(sum, reinterpret_cast<const std::byte*>(floats.data()), elements);
      },
      [&](std::size_t slot) {
        std::byte* const out = results.data() + slot * packet_bytes;
        kernels::round_to_floats(reinterpret_cast<std::byte*>(floats.data()), sums.data() + slot * elements,
                                 not_integers.data(), elements, 1);
        kernels::to_float16(halves.data(), floats.data(), elements);
        std::memcpy(out, halves.data(), packet_bytes);
      });
}

// At the worker: what block fixed point costs there, per packet, beside nothing for the types themselves.
void quantize_block(benchmark::State& state) {
  const std::vector<Bytes> trains = trains_of(1);
  std::vector<float> floats(elements);
  std::vector<std::uint16_t> halves(elements);
  std::vector<std::int32_t> words(elements);
  std::vector<std::int16_t> narrow(elements);
  std::size_t slot = 0;
  for (auto _ : state) {
    std::memcpy(halves.data(), trains[0].data() + slot++ % slots * packet_bytes, packet_bytes);
    kernels::from_bfloat16(floats.data(), halves.data(), elements);
    for (std::size_t begin = 0; begin < elements; begin += 256) {
      const auto scan = kernels::scan_block(floats.data() + begin, 256);
      benchmark::DoNotOptimize(kernels::quantize(reinterpret_cast<std::byte*>(words.data() + begin), floats.data() + begin,
                                                 256, kernels::fixed_point(scan.exponent, 8)));
    }
    std::transform(words.begin(), words.end(), narrow.begin(),
                   [](std::int32_t word) { return static_cast<std::int16_t>(word >> 16); });
    benchmark::DoNotOptimize(narrow.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}

BENCHMARK(add_int32_256)->Arg(2)->Arg(8)->Arg(64);
BENCHMARK(block_fixed)->Arg(2)->Arg(8)->Arg(64);
BENCHMARK(buffered<DType::bfloat16>)->Name("bfloat16_in_order")->Arg(2)->Arg(8)->Arg(64);
BENCHMARK(buffered<DType::float16>)->Name("float16_buffered")->Arg(2)->Arg(8)->Arg(64);
BENCHMARK(float16_in_place)->Arg(2)->Arg(8)->Arg(64);
BENCHMARK(quantize_block);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
