// ATP's switch and parameter server over packets in memory: nanoseconds for each packet of a rank, with the checksums of
// packets between hosts. The argument is the number of ranks: at 32 a bitmap is one word, beyond that several.
//
//   atp_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true

#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "base/cache_line.h"
#include "micro/null_sink.h"
#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"

namespace netsum::atp {
namespace {

constexpr std::uint32_t packet_elements = 353;  // fills an MTU of 1500
constexpr std::uint32_t window = 64;
constexpr std::uint64_t job_epoch = 1;
constexpr std::uint32_t folded_epochs = 77;

struct alignas(cache_line) Line {
  std::byte bytes[cache_line];
};

Endpoint endpoint_of(std::uint32_t number) {
  Endpoint endpoint;
  std::memcpy(endpoint.address.data(), &number, sizeof number);
  endpoint.port = 1;
  return endpoint;
}
const Endpoint above = endpoint_of(UINT32_MAX);

wire::atp::Common common_of(wire::atp::Type type, std::uint64_t sequence) {
  wire::atp::Common common;
  common.type = type;
  common.job_epoch = job_epoch;
  common.sequence = sequence;
  common.rank_epoch = folded_epochs;
  common.index = static_cast<std::uint32_t>(sequence % window);
  common.elements = packet_elements;
  return common;
}

// Packets as they lie in a receive buffer: one rank's of a whole window, one after the other; and the window's results.
class Rounds {
 public:
  explicit Rounds(const Topology& topology) : topology_(topology), trains_(topology.world_size()), views_(trains_.size()) {
    for (std::uint32_t rank = 0; rank < trains_.size(); ++rank) {
      bytes_ = wire::atp::gradient_bytes(common_of(wire::atp::Type::gradient, 0), topology.path(rank));
      trains_[rank].resize(window * bytes_);
      for (std::uint32_t i = 0; i < window; ++i) {
        views_[rank].push_back({std::span(trains_[rank]).subspan(i * bytes_, bytes_), endpoint_of(rank)});
      }
    }
    const std::size_t result = wire::atp::parameter_bytes(common_of(wire::atp::Type::parameter, 0));
    results_.resize(window * result);
    for (std::uint32_t i = 0; i < window; ++i)
      result_views_.push_back({std::span(results_).subspan(i * result, result), above});
  }

  void next() {
    for (std::uint32_t i = 0; i < window; ++i) {
      auto common = common_of(wire::atp::Type::gradient, round_ * window + i);
      for (std::uint32_t rank = 0; rank < trains_.size(); ++rank) {
        common.rank_epoch = rank + 1;
        const std::span<std::byte> packet = std::span(trains_[rank]).subspan(i * bytes_, bytes_);
        wire::atp::write_gradient_header(packet, common, topology_.path(rank));
        wire::atp::seal(packet);
      }
      common = common_of(wire::atp::Type::parameter, round_ * window + i);
      const std::size_t result = wire::atp::parameter_bytes(common);
      const std::span<std::byte> packet = std::span(results_).subspan(i * result, result);
      wire::atp::write_parameter_header(packet, common, common.index);
      wire::atp::seal(packet);
    }
    ++round_;
  }
  [[nodiscard]] Time now() const { return Time(std::chrono::milliseconds(round_)); }
  [[nodiscard]] std::uint64_t chunks() const { return round_ * window; }
  [[nodiscard]] const std::vector<std::vector<RxView>>& trains() const { return views_; }
  [[nodiscard]] const std::vector<RxView>& results() const { return result_views_; }

 private:
  const Topology& topology_;
  std::size_t bytes_ = 0;
  std::vector<std::vector<std::byte>> trains_;
  std::vector<std::vector<RxView>> views_;
  std::vector<std::byte> results_;
  std::vector<RxView> result_views_;
  std::uint64_t round_ = 0;
};

// serve(sink) takes the packets of one round; making them is not timed.
template <class Serve>
void time_packets(benchmark::State& state, Rounds& rounds, const Serve& serve) {
  NullSink sink;
  for (auto _ : state) {
    state.PauseTiming();
    rounds.next();
    state.ResumeTiming();
    serve(sink);
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(rounds.chunks() * rounds.trains().size()));
}

void at_switch(benchmark::State& state) {
  const auto ranks = static_cast<std::uint32_t>(state.range(0));
  const Topology topology({{at_server}, std::vector<std::uint32_t>(ranks, 0)});
  const SwitchConfig pool{.slots = window, .packet_elements = packet_elements};
  std::vector<Line> memory(Switch::memory_bytes(pool) / sizeof(Line));
  Switch core(pool, std::as_writable_bytes(std::span(memory)));
  SwitchJobConfig job{.epoch = job_epoch,
                      .folded_epochs = folded_epochs,
                      .packet_elements = packet_elements,
                      .window = window,
                      .parent = above,
                      .children = {}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    job.children.push_back({endpoint_of(rank), false, rank + 1, topology.below({false, rank})});
  }
  if (!core.add_job(job)) return state.SkipWithError("add_job");
  Rounds rounds(topology);
  time_packets(state, rounds, [&](Sink& sink) {
    for (const auto& train : rounds.trains()) core.on_packets(train, false, rounds.now(), sink);
    core.on_packets(rounds.results(), false, rounds.now(), sink);
  });
  if (core.job_counters(job_epoch)->completed != rounds.chunks()) state.SkipWithError("a chunk was not completed");
}

void at_server_alone(benchmark::State& state) {
  const auto ranks = static_cast<std::uint32_t>(state.range(0));
  ServerJobConfig job{.epoch = job_epoch,
                      .folded_epochs = folded_epochs,
                      .packet_elements = packet_elements,
                      .window = window,
                      .topology = Topology({{}, std::vector<std::uint32_t>(ranks, at_server)}),
                      .members = {},
                      .roots = {}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    job.members.push_back({rank + 1, endpoint_of(rank)});
    job.roots.push_back(endpoint_of(rank));
  }
  std::vector<Line> memory(Server::memory_bytes(packet_elements, window, ranks) / sizeof(Line));
  Server core;
  if (!core.add_job(job, std::as_writable_bytes(std::span(memory)))) return state.SkipWithError("add_job");
  Rounds rounds(job.topology);
  time_packets(state, rounds, [&](Sink& sink) {
    for (const auto& train : rounds.trains()) core.on_packets(train, false, rounds.now(), sink);
  });
  if (core.job_counters(job_epoch)->chunks != rounds.chunks()) state.SkipWithError("a chunk was not completed");
}

BENCHMARK(at_switch)->Arg(8)->Arg(32)->Arg(256);
BENCHMARK(at_server_alone)->Arg(8)->Arg(32)->Arg(256);

}  // namespace
}  // namespace netsum::atp

BENCHMARK_MAIN();
