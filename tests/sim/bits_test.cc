// Bits depend neither on the packets' length nor on the window: clusters with those that no seed draws, on networks that
// lose and reorder. The oracle knows the bits (oracle/judge.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/cluster.h"
#include "sim/random.h"

namespace netsum::sim {
namespace {

Scenario scenario_of(const std::string& protocol, std::uint32_t length, std::uint32_t window, std::uint64_t seed) {
  Settings settings;
  settings.protocol = protocol;
  settings.profile = Profile::lossy;
  settings.workers = {2, 5};
  settings.jobs = {1, 1};
  Scenario scenario = generate(settings, seed);
  scenario.scarce = false;
  scenario.switch_slots = 1U << 20;
  scenario.pool_elements = std::max(scenario.pool_elements, length);
  JobPlan& job = scenario.jobs[0];
  job.packet_elements = length;
  job.slots = window;
  job.measured = job.saturating = false;
  Random random(seed);
  for (stream::Operation& call : job.calls) {
    if (stream::reduces(call) && call.parts == 1) call.elements = 1 + random.below(20'000);
  }
  return scenario;
}

void expect_bits(const std::string& protocol, const std::vector<std::uint32_t>& lengths,
                 const std::vector<Numbers>& numbers) {
  std::uint64_t seed = 0;
  for (const std::uint32_t length : lengths) {
    for (const std::uint32_t window : {1U, 4U, 64U}) {
      for (const Numbers each : numbers) {
        Scenario scenario = scenario_of(protocol, length, window, ++seed);
        scenario.jobs[0].numbers = each;
        const Outcome outcome = run(scenario);
        EXPECT_GE(outcome.tally.operations, 6U);
        EXPECT_EQ("", outcome.failure) << protocol << ", " << length << " elements in a packet, window " << window
                                       << ", seed " << seed;
      }
    }
  }
}

TEST(Bits, OfSwitchmlDependNeitherOnPacketsNorOnWindows) {
  const std::vector<Numbers> twice(2, Numbers::block_fixed_point);
  expect_bits("switchml", {64, 192, 320, 832, 960, 1024, 4096, 15360}, twice);
}

// One that does not fit into integers costs its neighbours nothing, and gives them nothing.
TEST(Bits, OfAtpDependNeitherOnPacketsNorOnWindows) {
  expect_bits("atp", {32, 64, 100, 128, 256, 353, 2219, 8192, 10880}, {Numbers::scaled, Numbers::rescaled});
}

TEST(Bits, AtChipsDependOnNoWindow) {
  expect_bits("switchml-chip", {64, 256}, std::vector<Numbers>(4, Numbers::block_fixed_point));
}

TEST(Bits, OfRingsDependNeitherOnPacketsNorOnWindows) {
  expect_bits("netreduce", {64, 256, 1024, 4096}, std::vector<Numbers>(2, Numbers::in_order));
}

}  // namespace
}  // namespace netsum::sim
