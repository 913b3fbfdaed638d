// A SwitchML worker's lane beside the passes over its values alone: what the stream of chunks, headers and time-outs cost.
// The bound is the passes: for each packet the exponent of a later chunk, integers from floats and back, and two checksums.
//
//   worker_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "kernels/kernels.h"
#include "protocol/switchml/worker.h"
#include "wire/switchml.h"

namespace netsum {
namespace {

constexpr std::uint32_t packet_elements = 256;
constexpr std::uint32_t rank_epoch = 3, folded_epochs = 4;
constexpr std::uint64_t windows = 16;  // of chunks in a tensor

Endpoint aggregator() {
  Endpoint endpoint;
  endpoint.address[15] = 1;
  endpoint.port = 1;
  return endpoint;
}

// Packets as trains of one window: read by a worker as results, and written by it as contributions.
class Trains final : public Sink {
 public:
  explicit Trains(std::uint32_t slots) : sent_(slots * place_bytes), results_(slots * place_bytes) {
    lengths_.reserve(slots);
    views_.reserve(slots);
  }
  std::span<std::byte> datagram(const Endpoint&, std::size_t bytes) override {
    lengths_.push_back(bytes);
    return std::span(sent_).subspan((lengths_.size() - 1) * place_bytes, bytes);
  }
  void multicast(std::span<const std::byte>, std::span<const Endpoint>) override {}
  void flush() override {}

  // What a switch answers whose only rank this is.
  [[nodiscard]] std::span<const RxView> answers(bool checked) {
    using wire::switchml::Type;
    views_.clear();
    std::swap(sent_, results_);
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      const std::span<std::byte> packet = std::span(results_).subspan(i * place_bytes, lengths_[i]);
      wire::switchml::Common common;
      wire::switchml::ChunkPacket chunk;
      if (wire::switchml::parse_common(packet, common) != wire::ParseError::none ||
          wire::switchml::parse_chunk(packet, common, chunk) != wire::ParseError::none) {
        return {};
      }
      const Type type = common.type == Type::contribution ? Type::result : Type::exponent_result;
      wire::switchml::write_chunk_header(packet, {type, 0, common.job_epoch, folded_epochs, checked}, chunk.header);
      wire::switchml::seal(packet);
      views_.push_back({packet, aggregator()});
    }
    lengths_.clear();
    return views_;
  }

 private:
  static constexpr std::size_t place_bytes = 1152;
  std::vector<std::byte> sent_, results_;
  std::vector<std::size_t> lengths_;
  std::vector<RxView> views_;
};

std::vector<float> gradients(std::uint32_t slots) {
  std::vector<float> values(windows * slots * packet_elements);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000) * 0.001F - 0.3F;
  return values;
}

template <bool checked>
void worker_core(benchmark::State& state) {
  const auto slots = static_cast<std::uint32_t>(state.range(0));
  std::vector<float> values = gradients(slots);
  switchml::Worker worker({.job_epoch = 1,
                           .world_size = 2,
                           .rank_epoch = rank_epoch,
                           .folded_epochs = folded_epochs,
                           .packet_elements = packet_elements,
                           .slots = slots,
                           .aggregator = aggregator(),
                           .checksums = checked});
  Trains trains(slots);
  Time now{};
  stream::Operation operation;
  operation.data = values.data();
  operation.elements = values.size();
  std::uint64_t packets = 0;
  std::span<const RxView> answers;
  for (auto _ : state) {
    answers = trains.answers(checked);
    while (answers.empty() || worker.counters().results == 0) {
      if (answers.empty()) {
        if (!worker.idle()) return state.SkipWithError("the stream has stopped");
        if (!worker.submit(operation, now, trains)) return state.SkipWithError("submit");
        ++operation.number;
        if (!worker.submit(operation, now, trains)) return state.SkipWithError("submit");
        ++operation.number;
      } else {
        worker.on_packets(answers, now, trains);
      }
      answers = trains.answers(checked);
    }
    benchmark::DoNotOptimize(worker.take_completed());
    now += std::chrono::microseconds(100);
    const auto began = std::chrono::steady_clock::now();
    worker.on_packets(answers, now, trains);
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    packets += answers.size();
  }
  if (worker.counters().stale + worker.counters().foreign != 0) state.SkipWithError("a result was refused");
  state.SetItemsProcessed(static_cast<std::int64_t>(packets));
}

// Payload by payload into the same packets, of the same tensor.
template <bool checked>
void conversions(benchmark::State& state) {
  const auto slots = static_cast<std::uint32_t>(state.range(0));
  constexpr std::size_t place_bytes = 1152, packet_bytes = wire::switchml::chunk_header_bytes + 4 + packet_elements * 4;
  std::vector<float> values = gradients(slots);
  std::vector<std::byte> sent(slots * place_bytes), results(slots * place_bytes);
  std::uint64_t window = 0;
  for (auto _ : state) {
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      const auto chunk = [&](std::uint64_t ahead) {
        return values.data() + ((window + ahead) % windows * slots + slot) * packet_elements;
      };
      const auto in = std::span(results).subspan(slot * place_bytes, packet_bytes);
      const auto out = std::span(sent).subspan(slot * place_bytes, packet_bytes);
      const auto format = kernels::fixed_point(126, 2);
      if (checked) benchmark::DoNotOptimize(crc32c(in));
      kernels::dequantize(chunk(0), in.last(packet_elements * 4).data(), packet_elements, format, 1);
      benchmark::DoNotOptimize(kernels::scan_block(chunk(2), packet_elements));
      kernels::quantize_finite(out.last(packet_elements * 4).data(), chunk(1), packet_elements, format);
      if (checked) benchmark::DoNotOptimize(crc32c(out));
    }
    ++window;
    std::swap(sent, results);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * slots));
}

// 64 slots have a tensor of 1 MiB, 1024 of 16.
BENCHMARK(conversions<false>)->Name("conversions")->Arg(64)->Arg(1024);
BENCHMARK(conversions<true>)->Name("conversions_and_checksums")->Arg(64)->Arg(1024);
BENCHMARK(worker_core<true>)->Name("worker_core")->UseManualTime()->Arg(64)->Arg(1024);
BENCHMARK(worker_core<false>)->Name("worker_core_unchecked")->UseManualTime()->Arg(64)->Arg(1024);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
