// All-reduces among machines of several GPUs, as threads of this process: over named shared memory, real rings, and a
// switch.
#include "parallel/parallel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "e2e/rank_threads.h"

namespace netsum::parallel {
namespace {

using namespace testing;

constexpr Pattern patterns[] = {Pattern::flat_ring, Pattern::tencent, Pattern::parallel_netreduce, Pattern::parallel_ring};

struct Cluster {
  Cluster(Pattern with, std::uint32_t machine_count, std::uint32_t gpu_count, std::size_t elements)
      : pattern(with), machines(machine_count), gpus(gpu_count), aggregator(small_aggregator()) {
    static std::atomic<int> jobs{0};
    options.pattern = pattern;
    options.job = "test-" + std::to_string(getpid()) + "-" + std::to_string(jobs++);
    options.machines = machines;
    options.gpus = gpus;
    options.elements = elements;
    options.connect_deadline = patience;
    options.across.protocol = NetReduce{};
    options.across.aggregators = {aggregator.address()};
    for (std::uint32_t rank = 0; rank < machines * gpus; ++rank) {
      ports.push_back(TcpSocket::bound_to("127.0.0.1:0"));
      options.peers.push_back(ports.back().local_address());
    }
  }

  std::vector<std::optional<Error>> run(const std::function<void(ParallelAllReduce&, std::uint32_t)>& body) {
    return on_ranks(machines * gpus, [&](std::uint32_t rank) {
      ParallelOptions mine = options;
      mine.machine = rank / gpus;
      mine.gpu = rank % gpus;
      ParallelAllReduce job(mine);
      body(job, rank);
    });
  }

  Pattern pattern;
  std::uint32_t machines, gpus;
  Aggregator aggregator;
  ParallelOptions options;
  std::vector<TcpSocket> ports;
};

// Whole numbers, whose sums float32 holds in any order.
float value(std::uint32_t rank, std::size_t i) {
  return static_cast<float>((i * 7 + rank * 31) % 64);
}

TEST(ParallelAllReduce, SumsInEveryPatternAndLength) {
  for (const Pattern pattern : patterns) {
    Cluster cluster(pattern, 2, 3, 20'000);
    const auto outcomes = cluster.run([&](ParallelAllReduce& job, std::uint32_t rank) {
      for (const std::size_t elements : {0U, 1U, 255U, 3'000U, 20'000U}) {
        const auto tensor = job.tensor().first(elements);
        for (std::size_t i = 0; i < elements; ++i) tensor[i] = value(rank, i);
        job.barrier(patience);
        const StageDurations stages = job.all_reduce(elements, patience);
        EXPECT_GE(stages.before + stages.across + stages.after, Duration::zero());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < elements; ++i) {
          float sum = 0;
          for (std::uint32_t each = 0; each < 6; ++each) sum += value(each, i);
          wrong += tensor[i] != sum;
        }
        EXPECT_EQ(wrong, 0u) << "pattern " << static_cast<int>(pattern) << ", " << elements << " elements, rank " << rank;
      }
    });
    for (const auto& outcome : outcomes) EXPECT_FALSE(outcome) << outcome->what();
  }
}

TEST(ParallelAllReduce, OneThatGoesIsTheEndOfAll) {
  for (const Pattern pattern : patterns) {
    Cluster cluster(pattern, 2, 2, 1'000);
    const auto outcomes = cluster.run([&](ParallelAllReduce& job, std::uint32_t rank) {
      static_cast<void>(job.all_reduce(1'000, patience));
      if (rank == 3) return;
      static_cast<void>(job.all_reduce(1'000, patience));
    });
    EXPECT_FALSE(outcomes[3]) << outcomes[3]->what();
    for (const std::size_t rank : {0u, 1u, 2u}) {
      ASSERT_TRUE(outcomes[rank]) << "pattern " << static_cast<int>(pattern) << ", rank " << rank;
      EXPECT_TRUE(outcomes[rank]->code() == ErrorCode::worker_lost || outcomes[rank]->code() == ErrorCode::closed)
          << outcomes[rank]->what();
    }
  }
}

TEST(ParallelAllReduce, RefusesWhatCannotWork) {
  ParallelOptions options;
  const auto code = [&](const auto& change) {
    ParallelOptions changed = options;
    change(changed);
    const auto error = attempt([&] { const ParallelAllReduce job(changed); });
    return error ? std::optional(error->code()) : std::nullopt;
  };
  EXPECT_EQ(code([](auto& o) { o.machines = 0; }), ErrorCode::bad_argument);
  EXPECT_EQ(code([](auto& o) { o.gpus = 0; }), ErrorCode::bad_argument);
  EXPECT_EQ(code([](auto& o) { o.machine = 1; }), ErrorCode::bad_argument);
  EXPECT_EQ(code([](auto& o) { o.gpu = 1; }), ErrorCode::bad_argument);
  EXPECT_EQ(code([](auto& o) { o.pattern = Pattern::flat_ring; }), ErrorCode::bad_argument);
  EXPECT_EQ(code([](auto&) {}), std::nullopt);
  ParallelAllReduce alone(options);
  const auto error = attempt([&] { static_cast<void>(alone.all_reduce(1, patience)); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::bad_argument);
}

}  // namespace
}  // namespace netsum::parallel
