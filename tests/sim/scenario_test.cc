// A seed is a scenario: the same one every time, and of every part that is taken away the rest stays.

#include <gtest/gtest.h>

#include "sim/scenario.h"

namespace netsum::sim {
namespace {

Settings chaos(const std::string& limits = "") {
  Settings settings;
  settings.workers = {2, 16};
  settings.limits = Limits::parse(limits);
  return settings;
}

TEST(Limits, TextAndBack) {
  for (const std::string text :
       {"", "workers=2", "workers=2,operations=1,faults=17", "jobs=1,without=loss+late", "node-faults=0"}) {
    EXPECT_EQ(text, Limits::parse(text).text());
  }
  for (const std::string text :
       {"worker=2", "workers", "workers=", "workers=x", "workers=-1", "without=rain", "workers=99999999999999999999"}) {
    EXPECT_THROW(static_cast<void>(Limits::parse(text)), std::invalid_argument) << text;
  }
}

TEST(Scenario, TheSameSeedTwice) {
  EXPECT_EQ(generate(chaos(), 7).summary(), generate(chaos(), 7).summary());
  EXPECT_NE(generate(chaos(), 7).summary(), generate(chaos(), 8).summary());
}

TEST(Scenario, LimitsTakeAwayAndLeaveTheRest) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Scenario whole = generate(chaos(), seed), fewer = generate(chaos("operations=2,jobs=1"), seed);
    ASSERT_EQ(1U, fewer.jobs.size());
    const JobPlan &a = whole.jobs[0], &b = fewer.jobs[0];
    EXPECT_EQ(a.workers, b.workers);
    EXPECT_EQ(a.slots, b.slots);
    EXPECT_EQ(a.seed, b.seed);
    EXPECT_EQ(2U, b.calls.size());
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(stream::to_string(a.calls[i]), stream::to_string(b.calls[i]));
    EXPECT_EQ(whole.links.loss, fewer.links.loss);
    EXPECT_EQ(whole.aggregators, fewer.aggregators);
  }
}

TEST(Scenario, ProfilesHaveTheirFaultsOnly) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Settings settings;
    settings.profile = Profile::none;
    const Scenario none = generate(settings, seed);
    EXPECT_EQ(0, none.links.loss + none.links.late + none.links.control_loss + none.links.forge);
    EXPECT_TRUE(none.node_faults.empty());
    settings.profile = Profile::lossy;
    const Scenario lossy = generate(settings, seed);
    EXPECT_GT(lossy.links.loss, 0);
    EXPECT_TRUE(lossy.node_faults.empty());
    settings.profile = Profile::crash;
    const Scenario crash = generate(settings, seed);
    EXPECT_EQ(0, crash.links.loss + crash.links.late);
    EXPECT_FALSE(crash.node_faults.empty());
  }
}

TEST(Scenario, AFaultThatNeverHealsIsAlone) {
  for (const Profile profile : {Profile::dead_link, Profile::slow_rank, Profile::lossy_lane}) {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      Settings settings;
      settings.profile = profile;
      const Scenario scenario = generate(settings, seed);
      ASSERT_TRUE(scenario.lasting);
      EXPECT_FALSE(heals(scenario.lasting->kind));
      EXPECT_LT(scenario.lasting->rank, scenario.jobs[scenario.lasting->job].workers);
      EXPECT_TRUE(scenario.lasting->outward || scenario.lasting->inward);
      EXPECT_EQ(0, scenario.links.loss + scenario.links.late + scenario.links.control_loss);
      EXPECT_TRUE(scenario.node_faults.empty());
      settings.limits.kinds.erase(scenario.lasting->kind);
      EXPECT_FALSE(generate(settings, seed).lasting);
    }
  }
}

TEST(Scenario, RangesAreKeptAndUsed) {
  std::uint32_t least = 99, most = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    for (const JobPlan& job : generate(chaos(), seed).jobs) {
      least = std::min(least, job.workers);
      most = std::max(most, job.workers);
    }
  }
  EXPECT_EQ(2U, least);
  EXPECT_EQ(16U, most);
}

}  // namespace
}  // namespace netsum::sim
