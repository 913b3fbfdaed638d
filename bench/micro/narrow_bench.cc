// Sums of 16-bit packets at a switch: what may become of bfloat16 and float16 there, per contribution of 512 elements, which
// are as many bytes as 256 int32.
//
//   add_int32_256     the same bytes as int32: the yardstick
//   block_fixed       bfloat16 as int16 in block fixed point, added in place (the worker quantizes: quantize_block below)
//   bfloat16_in_order buffered, and added in rank order when the last is there
//   float16_buffered  likewise, exactly
//   float16_in_place  added to 64-bit accumulators as they come, exactly
//   bfloat16_exact, float16_exact  in a tree: so, of any values (kernels/exact_sum.h), and rounded
//   sum_planes        what such a sum takes upstream, in packets of a rank's length, of normally distributed values: no time
//
// Slots that are filled one rank after the other, as trains fill them: 64 slots.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/cache_line.h"
#include "kernels/exact_sum.h"
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

struct Sum {
  Sum(DType type, std::size_t count) : memory(new_lines(bytes_of(type, count))), sum(type, count, memory.get()) {
    sum.clear();
  }
  static std::size_t bytes_of(DType type, std::size_t count) {
    return kernels::ExactSum::memory_bytes(SumParts::values_in(type, count));
  }
  Lines memory;
  kernels::ExactSum sum;
};

template <DType dtype>
void exact(benchmark::State& state) {
  std::vector<Sum> sums;
  for (std::size_t slot = 0; slot < slots; ++slot) sums.emplace_back(dtype, elements);
  Bytes result(packet_bytes);
  run(
      state,
      [&](std::size_t slot, std::size_t rank, const std::byte* packet) {
        if (rank == 0) sums[slot].sum.clear();
        sums[slot].sum.add(packet);
      },
      [&](std::size_t slot) { sums[slot].sum.round(result.data(), 1); });
}

template <DType dtype>
void sum_planes(benchmark::State& state) {
  constexpr std::size_t values = has_blocks(dtype) ? 19 * block_values : 640;  // in 1280 bytes
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 0.01F);
  std::vector<float> floats(values);
  double packets = 0, sums = 0;
  for (auto _ : state) {
    constexpr std::size_t payload = has_blocks(dtype) ? block_bytes(dtype, values) : values;
    Sum sum(dtype, payload);
    Bytes bytes(payload * bytes_of(dtype));
    for (std::int64_t rank = 0; rank < state.range(0); ++rank) {
      for (float& value : floats) value = normal(random);
      if constexpr (has_blocks(dtype)) {
        kernels::to_blocks(dtype, bytes.data(), floats.data(), values, random(), 0);
      } else {
        kernels::to_narrow_wire(dtype, reinterpret_cast<std::uint16_t*>(bytes.data()), floats.data(), values);
      }
      sum.sum.add(bytes.data());
    }
    sum.sum.settle();
    for (std::size_t part = 0; part < sum.sum.parts(); ++part) {
      packets +=
          static_cast<double>(SumParts::bytes(dtype, payload, sum.sum.place_of(part))) / static_cast<double>(bytes.size());
    }
    sums += 1;
  }
  state.counters["packets"] = packets / sums;
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
BENCHMARK(exact<DType::bfloat16>)->Name("bfloat16_exact")->Arg(2)->Arg(8)->Arg(64);
BENCHMARK(exact<DType::float16>)->Name("float16_exact")->Arg(2)->Arg(8)->Arg(64);
BENCHMARK(quantize_block);
void with_ranks(benchmark::internal::Benchmark* sum) {
  sum->Iterations(200);
  for (const std::int64_t ranks : {2, 4, 8, 32, 256}) sum->Arg(ranks);
}
BENCHMARK(sum_planes<DType::bfloat16>)->Name("sum_planes/bfloat16")->Apply(with_ranks);
BENCHMARK(sum_planes<DType::float16>)->Name("sum_planes/float16")->Apply(with_ranks);
BENCHMARK(sum_planes<block8>)->Name("sum_planes/8_bits")->Apply(with_ranks);
BENCHMARK(sum_planes<block4>)->Name("sum_planes/4_bits")->Apply(with_ranks);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
