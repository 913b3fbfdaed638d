// Which slot a chunk asks for: the same on all ranks, whatever they have heard so far.
#include "protocol/atp/index.h"

#include <gtest/gtest.h>

#include <set>

namespace netsum::atp {
namespace {

std::set<std::uint32_t> window_of(const Indices& indices, std::uint32_t window) {
  std::set<std::uint32_t> slots;
  for (std::uint64_t sequence = 0; sequence < window; ++sequence) slots.insert(indices.of(sequence));
  return slots;
}

TEST(AtpIndex, AJobDoesNotCollideWithItselfWhileThereAreSlots) {
  for (std::uint64_t epoch = 1; epoch < 50; ++epoch) {
    for (const Indexing indexing : {Indexing::rehash, Indexing::hash}) {
      const Indices full({.indexing = indexing, .job_epoch = epoch, .slots = 64, .window = 64});
      EXPECT_EQ(64U, window_of(full, 64).size());
    }
  }
  const Indices few({.job_epoch = 3, .slots = 4, .window = 64});  // and with fewer slots it uses all
  EXPECT_EQ(4U, window_of(few, 64).size());
  for (std::uint64_t sequence = 0; sequence < 64; ++sequence) EXPECT_LT(few.of(sequence), 4U);
}

TEST(AtpIndex, JobsAndLanesHaveIndicesOfTheirOwn) {
  const IndexConfig config{.job_epoch = 5, .slots = 1 << 20, .window = 8};
  IndexConfig other_job = config, other_lane = config;
  other_job.job_epoch = 6;
  other_lane.lane = 1;
  EXPECT_EQ(window_of(Indices(config), 8), window_of(Indices(config), 8));
  EXPECT_NE(window_of(Indices(config), 8), window_of(Indices(other_job), 8));
  EXPECT_NE(window_of(Indices(config), 8), window_of(Indices(other_lane), 8));
}

TEST(AtpIndex, WhatAResultSaysHoldsFromOneWindowLater) {
  Indices indices({.job_epoch = 5, .slots = 1000, .window = 4});
  const std::uint32_t before = indices.of(3);
  indices.learn(2, 777);
  EXPECT_EQ(777U, indices.of(6));
  EXPECT_EQ(777U, indices.of(10));
  EXPECT_EQ(before, indices.of(7));
  indices.learn(6, 1234);  // a switch with more slots than this rank was told of
  EXPECT_EQ(234U, indices.of(10));
}

TEST(AtpIndex, OnlyRehashingLearns) {
  for (const Indexing indexing : {Indexing::hash, Indexing::linear, Indexing::partition}) {
    Indices indices({.indexing = indexing, .job_epoch = 5, .slots = 1000, .window = 4, .first = 100, .count = 10});
    const std::uint32_t before = indices.of(6);
    indices.learn(2, before + 1);
    EXPECT_EQ(before, indices.of(6));
  }
}

TEST(AtpIndex, LinearCountsThroughAllSlots) {
  const Indices indices({.indexing = Indexing::linear, .slots = 10, .window = 4});
  EXPECT_EQ(0U, indices.of(0));
  EXPECT_EQ(9U, indices.of(9));
  EXPECT_EQ(0U, indices.of(10));
}

TEST(AtpIndex, APartitionCountsThroughItsOwn) {
  const Indices indices({.indexing = Indexing::partition, .slots = 100, .window = 4, .first = 40, .count = 3});
  EXPECT_EQ(40U, indices.of(0));
  EXPECT_EQ(42U, indices.of(2));
  EXPECT_EQ(40U, indices.of(3));
  const Indices none({.indexing = Indexing::partition, .slots = 100, .window = 4, .first = 40, .count = 0});
  EXPECT_EQ(40U, none.of(9));
}

TEST(AtpIndex, TwoThatCollideDoNotMeetAgain) {
  int jobs = 0, positions = 0;
  for (std::uint32_t index = 0; index < 1000; ++index) {
    EXPECT_LT(rehashed(1, 0, index, 1000), 1000U);
    EXPECT_NE(rehashed(1, 0, index, 1000), index);
    jobs += rehashed(1, 0, index, 1000) == rehashed(2, 0, index, 1000);
    positions += rehashed(1, 0, index, 1000) == rehashed(1, 1, index, 1000);
  }
  EXPECT_LT(jobs, 20);  // by chance: one in a thousand
  EXPECT_LT(positions, 20);
}

TEST(AtpIndex, ACollisionLeadsElsewhereAsLongAsThereIsAnywhere) {
  for (std::uint64_t epoch = 0; epoch < 100; ++epoch) {
    for (std::uint32_t index = 0; index < 2; ++index) EXPECT_EQ(1 - index, rehashed(epoch, 3, index, 2));
    EXPECT_EQ(0U, rehashed(epoch, 3, 0, 1));
  }
}

}  // namespace
}  // namespace netsum::atp
