// From a seed that fails to the smallest scenario that still does.

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/shrink.h"

namespace netsum::sim {
namespace {

Outcome judged(bool fails) {
  Outcome outcome;
  if (fails) outcome.failure = "as planned";
  return outcome;
}

TEST(Shrink, FindsWhatTheFailureNeeds) {
  // Fails with three workers, two operations, and losses.
  const Runner runner = [](const Scenario& scenario) {
    const auto needed = [](const JobPlan& job) { return job.workers >= 3 && job.calls.size() >= 2; };
    return judged(std::any_of(scenario.jobs.begin(), scenario.jobs.end(), needed) &&
                  scenario.settings.limits.kinds.contains(Fault::loss));
  };
  Settings settings;
  settings.workers = {8, 16};
  settings.jobs = {2, 3};
  const Shrunk shrunk = shrink(settings, 1, 1000, runner);
  EXPECT_EQ("as planned", shrunk.failure);
  EXPECT_EQ(3U, shrunk.limits.workers);
  EXPECT_EQ(2U, shrunk.limits.operations);
  EXPECT_EQ(1U, shrunk.limits.jobs);
  FaultSet loss;
  loss.insert(Fault::loss);
  EXPECT_EQ(loss, shrunk.limits.kinds);
  settings.limits = shrunk.limits;
  EXPECT_FALSE(runner(generate(settings, 1)).failure.empty()) << "what it prints must fail";
}

TEST(Shrink, GivesUpInTime) {
  std::uint32_t runs = 0;
  const Shrunk shrunk = shrink({}, 1, 5, [&](const Scenario&) {
    ++runs;
    return judged(true);
  });
  EXPECT_EQ(5U, runs);
  EXPECT_EQ(5U, shrunk.runs);
}

}  // namespace
}  // namespace netsum::sim
