// A fourth protocol in the simulator: whole clusters, with every fault, and the same judge.

#include <gtest/gtest.h>

#include "protocol/baseline/simulated.h"
#include "sim/cluster.h"

namespace netsum::baseline {
namespace {

sim::Tally run_all(sim::Profile profile, std::uint64_t seeds) {
  const Simulated protocol;
  sim::Settings settings;
  settings.protocol = protocol.rules().name;
  settings.profile = profile;
  sim::Tally all;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const sim::Outcome outcome = run(generate(settings, seed, protocol), {nullptr, nullptr, &protocol});
    EXPECT_EQ("", outcome.failure) << "seed " << seed << ", " << to_string(profile);
    for (const auto& [name, count] : outcome.tally.events) all.events[name] += count;
  }
  return all;
}

TEST(BaselineCluster, EveryOperationOfEverySeedEndsWell) {
  EXPECT_LT(0, run_all(sim::Profile::none, 40).events.at("server_chunks"));
  const sim::Tally lossy = run_all(sim::Profile::lossy, 40);
  EXPECT_LT(0, lossy.events.at("server_repeats_answered"));
  EXPECT_LT(0, lossy.events.at("server_repeats_waiting"));
  const sim::Tally crash = run_all(sim::Profile::crash, 40);
  EXPECT_LT(0, crash.events.at("worker_unknown_job"));
  EXPECT_LT(0, crash.events.at("recovered_after_an_error"));
  const sim::Tally chaos = run_all(sim::Profile::chaos, 60);
  EXPECT_LT(0, chaos.events.at("server_mismatch"));
  EXPECT_LT(0, chaos.events.at("server_dropped_source"));
  EXPECT_LT(0, chaos.events.at("server_old"));
}

TEST(BaselineCluster, ASeedIsARun) {
  const Simulated protocol;
  sim::Settings settings;
  settings.protocol = protocol.rules().name;
  const sim::Scenario scenario = generate(settings, 7, protocol);
  const sim::RunOptions options{nullptr, nullptr, &protocol};
  EXPECT_EQ(run(scenario, options).trace_hash, run(scenario, options).trace_hash);
}

}  // namespace
}  // namespace netsum::baseline
