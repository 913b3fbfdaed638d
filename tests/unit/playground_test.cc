// The playground's runs: by netsum's rule every sum is right whatever the network does; by the published one it need not be.

#include <gtest/gtest.h>

#include <string>

#include "apps/playground/playground.h"

namespace netsum::playground {
namespace {

std::size_t wrong_sums(const Playground& run) {
  std::size_t wrong = 0;
  for (std::size_t rank = 0; rank < Playground::ranks; ++rank) {
    for (std::size_t chunk = 0; chunk < Playground::chunks; ++chunk) {
      const std::uint32_t sum = run.sum(rank, chunk);
      if (sum != 0 && sum != Playground::exact(chunk)) ++wrong;
    }
  }
  return wrong;
}

void run_on(Playground& run) {
  for (int step = 0; step < 10'000 && !run.complete(); ++step) ASSERT_TRUE(run.act("s"));
  EXPECT_TRUE(run.complete());
}

TEST(Playground, SumsByEitherRuleWithoutFaults) {
  for (const Rule rule : {Rule::netsum, Rule::published}) {
    Playground run(rule, 0);
    run_on(run);
    EXPECT_EQ(0U, wrong_sums(run));
    EXPECT_EQ(444U, run.sum(2, 3));
    EXPECT_EQ(std::string::npos, run.state().find("\"once\":false")) << run.state();
  }
}

TEST(Playground, EightStepsToAWrongSumByThePublishedRuleAlone) {
  for (const Rule rule : {Rule::netsum, Rule::published}) {
    Playground run(rule, 0);
    for (unsigned step = 0; step < Playground::steps; ++step) {
      EXPECT_EQ(0U, wrong_sums(run)) << "before step " << step;
      EXPECT_TRUE(run.act(run.walk(step))) << "step " << step;
    }
    EXPECT_EQ(rule == Rule::published ? 1U : 0U, wrong_sums(run)) << run.state();
    EXPECT_EQ(rule == Rule::published, run.state().find("\"once\":false") != std::string::npos) << run.state();
    EXPECT_EQ(rule == Rule::published ? 9U : 0U, run.sum(0, 2));
    if (rule == Rule::netsum) {
      run_on(run);
      EXPECT_EQ(0U, wrong_sums(run));
    }
  }
}

TEST(Playground, EverySumIsRightWhateverTheSeed) {
  std::uint32_t first_wrong = 0;  // by the published rule
  bool lost = false;
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    Playground run(Rule::netsum, seed);
    run_on(run);
    EXPECT_EQ(0U, wrong_sums(run)) << "seed " << seed;
    lost |= run.state().find("the network loses") != std::string::npos;
    Playground other(Rule::published, seed);
    for (int step = 0; step < 2000 && other.act("s"); ++step) {
    }
    if (wrong_sums(other) != 0 && first_wrong == 0) first_wrong = seed;
  }
  EXPECT_TRUE(lost);
  EXPECT_EQ(25U, first_wrong) << "as docs/playground.md says";
}

TEST(Playground, FaultsByHand) {
  Playground run(Rule::netsum, 0);
  EXPECT_TRUE(run.act("x0.c2.c2.l3.d4.d2.w5.x1"));
  EXPECT_FALSE(run.act("d0")) << "it is gone";
  run_on(run);
  EXPECT_EQ(0U, wrong_sums(run));
  EXPECT_NE(std::string::npos, run.state().find("has waited too long, and repeats"));
}

TEST(Playground, TheSameActionsMakeTheSameRun) {
  const char* const actions = "c0.w12.x7.s.s.w30";
  Playground run(Rule::netsum, 5), again(Rule::netsum, 5), other(Rule::netsum, 6);
  EXPECT_EQ(run.act(actions), again.act(actions));
  static_cast<void>(other.act(actions));
  EXPECT_EQ(run.state(), again.state());
  EXPECT_NE(run.state(), other.state());
  // Time may pass in parts.
  Playground whole(Rule::netsum, 5), parts(Rule::netsum, 5);
  EXPECT_TRUE(whole.act("w40"));
  EXPECT_TRUE(parts.act("w15.w25"));
  EXPECT_EQ(whole.state(), parts.state());
}

TEST(Playground, WhatIsNoActionDoesNothing) {
  Playground run(Rule::netsum, 0);
  const std::string before = run.state();
  for (const char* const action : {"d", "d99", "q1", "d1x", "w", "d-1", "..", "x99999999999"})
    EXPECT_FALSE(run.act(action)) << action;
  EXPECT_EQ(before, run.state());
}

}  // namespace
}  // namespace netsum::playground
