// Rings beside what sums in the network: as long as theory says, and right whatever is lost.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "sim/packet_level.h"
#include "sim/ring_lane.h"
#include "small_experiments.h"

namespace netsum::sim {
namespace {

using std::chrono::microseconds;

constexpr std::uint64_t elements = 500'000;

Report run_ring(const Topology& topology, const std::vector<Bucket>& buckets = {{elements, {}, {}}},
                std::uint64_t iterations = 1, std::uint32_t lanes = 1, std::uint64_t seed = 1) {
  Experiment experiment = on(topology, "ring");
  experiment.seed = seed;
  experiment.lanes = lanes;
  ExperimentJob& job = add_job(experiment, hosts_of(topology), buckets);
  job.plan.slots = 256;
  job.training.iterations = iterations;
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  return report;
}

// 2 (n - 1) / n M on each link, and a hop's delay for each step.
TEST(Ring, TakesAsLongAsItsBytes) {
  for (const std::uint32_t ranks : {2U, 4U, 16U}) {
    const Report report = run_ring(star(ranks, links({.bits_per_second = 10 * gigabit, .delay = microseconds(1)})));
    const double frame = 256 * 4 + RingLane::header_bytes + 42;
    const double bytes = 2.0 * (ranks - 1) / ranks * elements / 256 * frame;
    const double steps = 2.0 * (ranks - 1) * (2e-6 + 2 * frame * 8 / 10e9);
    const double least = bytes * 8 / 10e9 + steps, took = report.jobs.at(0).operation_seconds.at(0);
    std::printf("%u ranks: %.0f us, in theory %.0f\n", ranks, took * 1e6, least * 1e6);
    EXPECT_NEAR(least, took, 0.05 * least);
    EXPECT_EQ(0U, report.jobs.at(0).retransmissions);
  }
}

// Each result is compared with its sum. Lengths that ranks, lanes and packets do not divide.
TEST(Ring, IsRightWithLosses) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto ranks = static_cast<std::uint32_t>(2 + seed % 7), lanes = static_cast<std::uint32_t>(1 + seed % 3);
    const Topology topology = star(ranks, links({.bits_per_second = gigabit, .delay = microseconds(5), .loss = 0.03}));
    const Report report = run_ring(topology, {{7001 + seed * 977, {}, {}}, {seed, {}, {}}}, 3, lanes, seed);
    EXPECT_EQ(6U, report.jobs.at(0).operation_seconds.size());
  }
}

// The first one does not wait for the second, called at once.
TEST(Ring, SumsInTheOrderOfCalls) {
  const Topology topology = star(8, links({.bits_per_second = 10 * gigabit, .delay = microseconds(1)}));
  const double alone = run_ring(topology).jobs.at(0).operation_seconds.at(0);
  const Report both = run_ring(topology, {{elements, {}, {}}, {elements, {}, {}}});
  EXPECT_NEAR(alone, both.jobs.at(0).operation_seconds.at(0), 0.05 * alone);
  EXPECT_NEAR(2 * alone, both.jobs.at(0).operation_seconds.at(1), 0.1 * alone);
}

TEST(Ring, OfOneRankHasNothingToSend) {
  const Report report = run_ring(star(1, links({})));
  EXPECT_EQ(1U, report.jobs.at(0).operation_seconds.size());
  EXPECT_EQ(0U, report.packets);
}

// A SwitchML job of others, on one network, takes n / 2 (n - 1) of its time.
TEST(Ring, StandsBesideSwitchMl) {
  Experiment experiment = on(star(16, links({.bits_per_second = 10 * gigabit, .delay = microseconds(1)})), "ring");
  const std::vector<NodeId> hosts = hosts_of(experiment.topology);
  for (const char* const protocol : {"ring", "switchml"}) {
    const std::ptrdiff_t first = protocol == std::string("ring") ? 0 : 8;
    ExperimentJob& job = add_job(experiment, {hosts.begin() + first, hosts.begin() + first + 8}, {{elements, {}, {}}});
    job.protocol = protocol;
    job.plan.slots = 256;
  }
  const Report report = run_packets(experiment);
  EXPECT_EQ("", report.failure);
  EXPECT_NEAR(2.0 * 7 / 8, report.jobs.at(0).operation_seconds.at(0) / report.jobs.at(1).operation_seconds.at(0), 0.1);
}

}  // namespace
}  // namespace netsum::sim
