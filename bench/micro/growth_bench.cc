// What a contribution costs at the switch as workers and jobs grow, over the in-memory network: from its receive queue to
// the results' delivery. Each round is 512 contributions of 256 elements, whoever they come from: in L2, so that what grows
// is not the cache's misses.
//
//   growth_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true

#include <benchmark/benchmark.h>
#include <time.h>

#include <chrono>
#include <memory>
#include <vector>

#include "protocol/switchml/switch.h"
#include "transport/datagram/fake.h"
#include "wire/switchml.h"

namespace netsum {
namespace {

constexpr std::uint32_t packet_elements = 256;
constexpr std::uint32_t contributions = 512;

struct alignas(64) Line {
  std::byte bytes[64];
};

Endpoint endpoint_of(std::uint32_t number) {
  Endpoint endpoint;
  endpoint.address[15] = static_cast<std::uint8_t>(number);
  endpoint.address[14] = static_cast<std::uint8_t>(number >> 8);
  endpoint.port = 1;
  return endpoint;
}

class Cluster {
 public:
  Cluster(std::uint32_t ranks, std::uint32_t jobs)
      : ranks_(ranks), slots_(contributions / ranks / jobs), switch_(net_.attach(endpoint_of(0))) {
    for (std::uint32_t job = 0; job < jobs; ++job) {
      switchml::SwitchJobConfig config{job + 1, packet_elements, slots_, {}};
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const Endpoint endpoint = endpoint_of(1 + job * ranks + rank);
        config.members.push_back({rank, endpoint});
        workers_.push_back(net_.attach(endpoint));
      }
      auto& memory = memory_.emplace_back(job_bytes() / sizeof(Line));
      if (!core_.add_job(config, std::as_writable_bytes(std::span(memory)))) failed_ = true;
    }
  }

  [[nodiscard]] std::size_t job_bytes() const { return switchml::Switch::memory_bytes(packet_elements, slots_, ranks_); }
  [[nodiscard]] std::uint32_t slots() const { return slots_; }
  [[nodiscard]] bool failed() const { return failed_; }

  // Each worker sends one window of contributions.
  void send(std::uint64_t round) {
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      const std::uint32_t rank = i % ranks_;
      for (std::uint32_t slot = 0; slot < slots_; ++slot) {
        const wire::switchml::ChunkHeader header{.operation = round,
                                                 .slot = static_cast<std::uint16_t>(slot),
                                                 .version = static_cast<std::uint8_t>(round % 2),
                                                 .exponents = 1,
                                                 .elements = packet_elements,
                                                 .ahead_operation = 1};
        const auto packet = workers_[i]->sink().datagram(endpoint_of(0), wire::switchml::chunk_packet_bytes(header));
        wire::switchml::write_chunk_header(
            packet, {wire::switchml::Type::contribution, static_cast<std::uint8_t>(rank), i / ranks_ + 1, rank}, header);
        wire::switchml::seal(packet);
      }
      workers_[i]->sink().flush();
    }
  }

  void serve(std::uint64_t round) {
    for (auto packets = switch_->receive(); !packets.empty(); packets = switch_->receive()) {
      core_.on_packets(packets, Time(std::chrono::nanoseconds(round)), switch_->sink());
      switch_->sink().flush();
    }
  }

  // Takes what the workers were sent. False: a result is missing.
  [[nodiscard]] bool receive() {
    std::size_t results = 0;
    for (const auto& worker : workers_) {
      for (auto packets = worker->receive(); !packets.empty(); packets = worker->receive()) results += packets.size();
    }
    return results == std::size_t{slots_} * workers_.size();
  }

 private:
  std::uint32_t ranks_, slots_;
  transport::FakeNetwork net_;
  std::unique_ptr<transport::Transport> switch_;
  std::vector<std::unique_ptr<transport::Transport>> workers_;
  std::vector<std::vector<Line>> memory_;
  switchml::Switch core_;
  bool failed_ = false;
};

// Of this thread: what else the machine does costs it less than it would an interval of time.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void at_the_switch(benchmark::State& state) {
  Cluster cluster(static_cast<std::uint32_t>(state.range(0)), static_cast<std::uint32_t>(state.range(1)));
  if (cluster.failed()) return state.SkipWithError("add_job");
  std::uint64_t round = 0;
  for (auto _ : state) {
    cluster.send(round);
    const double begin = cpu_seconds();
    cluster.serve(round);
    state.SetIterationTime(cpu_seconds() - begin);
    if (!cluster.receive()) return state.SkipWithError("a result is missing");
    ++round;
  }
  state.SetItemsProcessed(state.iterations() * contributions * packet_elements);
  state.counters["slots"] = cluster.slots();
  state.counters["job_bytes"] = static_cast<double>(cluster.job_bytes());
}

BENCHMARK(at_the_switch)->ArgsProduct({{2, 4, 8, 16, 32, 64}, {1, 2, 8}})->ArgNames({"workers", "jobs"})->UseManualTime();

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
