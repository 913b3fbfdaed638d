// The kernels on one packet's worth of elements in cache, as payloads lie in a train: at any alignment.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "base/crc32c.h"
#include "conversion.h"
#include "kernels/kernels.h"

namespace netsum {
namespace {

constexpr std::size_t payload_at = 52;

struct Buffers {
  explicit Buffers(benchmark::State& state)
      : count(static_cast<std::size_t>(state.range(0) & 0xffff)),
        payload((count + payload_at / 4) * 4),
        sum(count * 4),
        values(count, 1.5F) {}
  std::size_t count;
  std::vector<std::byte> payload, sum;
  std::vector<float> values;
};

void finish(benchmark::State& state, const Buffers& buffers) {
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(buffers.count * 4));
}

void add_int32(benchmark::State& state) {
  Buffers b(state);
  for (auto _ : state) {
    kernels::add_int32(b.sum.data(), b.payload.data() + payload_at, b.count);
    benchmark::ClobberMemory();
  }
  finish(state, b);
}

void add_int32_network(benchmark::State& state) {
  Buffers b(state);
  for (auto _ : state) {
    kernels::add_int32_network(b.sum.data(), b.payload.data() + payload_at, b.count);
    benchmark::ClobberMemory();
  }
  finish(state, b);
}

void add_int32_checked(benchmark::State& state) {
  Buffers b(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::add_int32_checked(b.sum.data(), b.payload.data() + payload_at, b.count));
    benchmark::ClobberMemory();
  }
  finish(state, b);
}

void scan_block(benchmark::State& state) {
  Buffers b(state);
  for (auto _ : state) benchmark::DoNotOptimize(kernels::scan_block(b.values.data(), b.count));
  finish(state, b);
}

void quantize(benchmark::State& state) {
  Buffers b(state);
  const auto format = kernels::fixed_point(127, 4);
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::quantize(b.payload.data() + payload_at, b.values.data(), b.count, format));
    benchmark::ClobberMemory();
  }
  finish(state, b);
}

// The second argument is the divisor, here and below: 1 for a sum.
void dequantize(benchmark::State& state) {
  Buffers b(state);
  const auto format = kernels::fixed_point(127, 4);
  const auto divisor = static_cast<std::uint32_t>(state.range(1));
  for (auto _ : state) {
    kernels::dequantize(b.values.data(), b.payload.data() + payload_at, b.count, format, divisor);
    benchmark::ClobberMemory();
  }
  finish(state, b);
}

void divide_int32(benchmark::State& state) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(state.range(0)));
  const auto divisor = static_cast<std::uint32_t>(state.range(1));
  for (auto _ : state) {
    std::fill(values.begin(), values.end(), 2'000'000'000);
    kernels::divide_int32(values.data(), values.size(), divisor);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}

// 4096 elements of each rank, as in shared memory: the first argument is how many ranks there are.
template <DType dtype, DType travels>
void sum_all(benchmark::State& state) {
  constexpr std::size_t elements = 4096;
  const auto ranks = static_cast<std::size_t>(state.range(0));
  std::vector<std::vector<std::uint32_t>> tensors;
  std::vector<const std::byte*> sources;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    tensors.emplace_back(elements, dtype == DType::float32 ? 0x3fc00000U : 0x3c003e00U);
  }
  for (const auto& tensor : tensors) sources.push_back(reinterpret_cast<const std::byte*>(tensor.data()));
  std::vector<std::uint32_t> out(elements);
  for (auto _ : state) {
    kernels::sum_all(dtype, reinterpret_cast<std::byte*>(out.data()), nullptr, sources, elements,
                     static_cast<std::uint32_t>(state.range(1)), travels);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(elements));
}

// As at NetReduce's accelerator.
template <DType dtype>
void sum_in_order(benchmark::State& state) {
  constexpr std::size_t elements = 256;
  const auto ranks = static_cast<std::size_t>(state.range(0));
  const std::vector<std::vector<std::uint32_t>> tensors(
      ranks, std::vector<std::uint32_t>(elements, dtype == DType::float32 ? 0x3fc00000U : 0x3c003e00U));
  std::vector<const std::byte*> sources;
  for (const auto& tensor : tensors) sources.push_back(reinterpret_cast<const std::byte*>(tensor.data()));
  std::vector<std::uint32_t> out(elements);
  for (auto _ : state) {
    kernels::sum_in_order(dtype, reinterpret_cast<std::byte*>(out.data()), sources, elements,
                          static_cast<std::uint32_t>(state.range(1)));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(elements));
}

// A tensor in L2, block by block, as a worker turns it into packets: each block is quantized, and the largest exponent of
// the one that travels a window later looked for (SwitchML §3.7).
constexpr std::size_t tensor_elements = 1 << 15, block_elements = 256;

void quantize_with_largest_exponent(benchmark::State& state) {
  const std::vector<float> values(tensor_elements, 1.5F);
  std::vector<std::byte> payload(payload_at + tensor_elements * 4);
  const auto format = kernels::fixed_point(127, 4);
  for (auto _ : state) {
    for (std::size_t at = 0; at < tensor_elements; at += block_elements) {
      const std::size_t ahead = (at + tensor_elements / 2) % tensor_elements;
      benchmark::DoNotOptimize(kernels::scan_block(values.data() + ahead, block_elements));
      kernels::quantize_finite(payload.data() + payload_at + at * 4, values.data() + at, block_elements, format);
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(tensor_elements));
}

void convert_alone(benchmark::State& state) {
  const std::vector<float> values(tensor_elements, 1.5F);
  std::vector<std::int32_t> integers(tensor_elements);
  for (auto _ : state) {
    for (std::size_t at = 0; at < tensor_elements; at += block_elements) {
      convert_to_integers(integers.data() + at, values.data() + at, block_elements, 1e6F);
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(tensor_elements));
}

// ATP's scale. 1.5 times it fits, as gradients do.
constexpr double scale = 1e8;

void quantize_scaled(benchmark::State& state) {
  Buffers b(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels::quantize_scaled(b.payload.data() + payload_at, b.values.data(), b.count, scale));
    benchmark::ClobberMemory();
  }
  finish(state, b);
}

void dequantize_scaled(benchmark::State& state) {
  Buffers b(state);
  for (auto _ : state) {
    kernels::dequantize_scaled(b.values.data(), b.payload.data() + payload_at, b.count, scale, 3);
    benchmark::ClobberMemory();
  }
  finish(state, b);
}

// float32 as it travels, in a packet's bytes, and back: bfloat16, and blocks of 8 and 4 bits, by chance. Those come back
// in 8.
struct Narrow {
  explicit Narrow(DType type) : in_blocks(has_blocks(type)), elements(in_blocks ? block_bytes(type, count) : count) {
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 7919 % 20011) * 1e-3F - 10;
  }
  void encode(DType type, std::byte* to) const {
    if (in_blocks) return kernels::to_blocks(type, to, values.data(), count, 3, 0);
    kernels::to_narrow_wire(type, reinterpret_cast<std::uint16_t*>(to), values.data(), count);
  }
  static constexpr std::size_t count = 15104;
  bool in_blocks;
  std::size_t elements;  // of a packet
  std::vector<float> values = std::vector<float>(count);
  std::vector<std::byte> payload = std::vector<std::byte>(count * 2);
};

template <DType type>
void to_narrow(benchmark::State& state) {
  Narrow b(type);
  for (auto _ : state) {
    b.encode(type, b.payload.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(b.count));
}

template <DType type>
void from_narrow(benchmark::State& state) {
  Narrow b(type);
  b.encode(type, b.payload.data());
  for (auto _ : state) {
    if (b.in_blocks) {
      kernels::from_blocks(type, b.values.data(), b.payload.data(), b.count, 1);
    } else {
      kernels::from_bfloat16(b.values.data(), reinterpret_cast<const std::uint16_t*>(b.payload.data()), b.count);
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(b.count));
}

template <DType type>
void sum_narrow(benchmark::State& state) {
  Narrow b(type);
  const auto ranks = static_cast<std::size_t>(state.range(0));
  std::vector<std::vector<std::byte>> all(ranks, b.payload);
  std::vector<const std::byte*> sources;
  for (auto& each : all) {
    b.encode(type, each.data());
    sources.push_back(each.data());
    // Ranks' blocks have not all the same step, but nearly.
    for (float& value : b.values) value *= sources.size() % 3 == 0 ? 0.25F : 2;
  }
  for (auto _ : state) {
    kernels::combine_in_order(ReduceOp::sum, type, b.payload.data(), sources, b.elements, 1);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(b.count * ranks));
}

void checksum(benchmark::State& state) {
  Buffers b(state);
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(b.payload));
  finish(state, b);
}

BENCHMARK(add_int32)->Arg(62)->Arg(64)->Arg(256)->Arg(4096);
BENCHMARK(add_int32_network)->Arg(64)->Arg(256);
BENCHMARK(add_int32_checked)->Arg(62)->Arg(64)->Arg(256)->Arg(4096);
BENCHMARK(scan_block)->Arg(256);
BENCHMARK(quantize)->Arg(256);
BENCHMARK(dequantize)->Args({256, 1})->Args({256, 3})->Args({256, 4})->Args({62, 3});
BENCHMARK(divide_int32)->Args({256, 1})->Args({256, 3});
BENCHMARK(sum_all<DType::float32, DType::int32>)->Args({3, 1})->Args({3, 3})->Args({4, 1})->Args({4, 4});
BENCHMARK(sum_all<DType::bfloat16, DType::int32>)->Args({3, 1})->Args({3, 3})->Args({4, 4});
BENCHMARK(sum_all<DType::bfloat16, DType::bfloat16>)->Args({3, 1})->Args({3, 3})->Args({4, 4});
BENCHMARK(sum_all<DType::float16, DType::float16>)->Args({3, 1})->Args({3, 3})->Args({4, 4});
BENCHMARK(sum_all<DType::int32, DType::int32>)->Args({3, 1})->Args({3, 3})->Args({4, 4});
BENCHMARK(sum_in_order<DType::float32>)->Args({3, 1})->Args({3, 3});
BENCHMARK(sum_in_order<DType::float16>)->Args({3, 1})->Args({3, 3});
BENCHMARK(sum_in_order<DType::int32>)->Args({3, 1})->Args({3, 3});
BENCHMARK(quantize_with_largest_exponent);
BENCHMARK(convert_alone);
BENCHMARK(quantize_scaled)->Arg(62)->Arg(256)->Arg(4096);
BENCHMARK(dequantize_scaled)->Arg(62)->Arg(256)->Arg(4096);
BENCHMARK(to_narrow<DType::bfloat16>);
BENCHMARK(to_narrow<block8>);
BENCHMARK(to_narrow<block4>);
BENCHMARK(from_narrow<DType::bfloat16>);
BENCHMARK(from_narrow<block8>);
BENCHMARK(sum_narrow<DType::bfloat16>)->Arg(8);
BENCHMARK(sum_narrow<block8>)->Arg(8);
BENCHMARK(sum_narrow<block4>)->Arg(8);
BENCHMARK(checksum)->Arg(64)->Arg(256)->Arg(4096);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
